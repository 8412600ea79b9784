// Fuzz entry point of the text that set-up reads from the environment: resource attributes, masks of devices, scalars.
// Nothing may leave by an exception, and what comes out must be valid UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/lens/setup/resource.h"
#include "pharos/lens/variables/scalar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  namespace lens = pharos::lens;
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  std::vector<std::string> warnings;
  for (const auto& [key, value] : lens::parse_resource_attributes(text, warnings)) {
    const std::string& decoded = std::get<std::string>(value);
    PHAROS_CHECK(!key.empty() && lens::make_valid_utf8(key) == key, "key is not valid");
    PHAROS_CHECK(lens::make_valid_utf8(decoded) == decoded, "value is not valid UTF-8");
  }
  PHAROS_CHECK(lens::count_visible_devices(text) >= 0, "a negative number of devices");
  const auto integer = lens::parse_integer(text);
  if (integer) PHAROS_CHECK(lens::parse_integer(std::to_string(*integer)) == integer, "integer does not come back");
  // Every integer is a number, too; every other word is at most one of the kinds.
  if (integer) PHAROS_CHECK(lens::parse_number(text).has_value(), "an integer is no number");
  if (lens::parse_boolean(text) && !integer) PHAROS_CHECK(!lens::parse_number(text), "a word is a number");
  return 0;
}
