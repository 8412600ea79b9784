// libFuzzer entry: any bytes are either a config.json of a supported family or a UserError; what was read can be
// written and read again.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/hf/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto hf = pharos::hf::parse_hf_config(pharos::base::parse_json(text, "input"), "input");
    pharos::hf::parse_hf_config(pharos::hf::to_hf_config(hf), "output");
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}
