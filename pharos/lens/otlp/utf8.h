// Text as protobuf demands it: receivers refuse a whole request for one string that is not UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace pharos::lens::otlp {

/// Whether `text` is well-formed UTF-8 (Unicode 15, table 3-7: no overlong forms, no surrogates).
bool is_utf8(std::string_view text);

/// `text` with U+FFFD in place of each longest run of bytes that cannot begin or continue a character.
std::string repair_utf8(std::string_view text);

}  // namespace pharos::lens::otlp
