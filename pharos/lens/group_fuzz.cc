// Fuzz entry point of group specifications. Only UserError may leave the parser; a set comes back from its own names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/lens/group.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  using namespace pharos::lens;
  try {
    const GroupMask mask = parse_groups({reinterpret_cast<const char*>(data), num_bytes}, "fuzz");
    if (parse_groups(format_groups(mask)) != mask) std::abort();
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}
