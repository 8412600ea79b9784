// libFuzzer entry: any bytes are either a consistent header or a UserError, never a crash or a huge allocation.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "pharos/base/error.h"
#include "pharos/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto header = pharos::checkpoint::parse_safetensors_header(std::as_bytes(std::span(data, size)), "input");
    for (const auto& entry : header.tensors) {
      if (header.data_offset_bytes + entry.end_bytes > size || header.find(entry.name) != &entry) std::abort();
    }
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}
