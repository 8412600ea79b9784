// libFuzzer entry: any bytes are either an index of plain file names or a UserError.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/checkpoint/safetensors_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto files = pharos::checkpoint::parse_safetensors_index(text, "input");
    if (files.empty()) std::abort();
    for (const auto& [name, file] : files) {
      if (file.empty() || file == ".." || file.find('/') != std::string::npos) std::abort();
    }
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}
