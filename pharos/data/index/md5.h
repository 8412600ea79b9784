// MD5 (RFC 1321). Only for the names of index caches, which other trainers share; never for security.
#pragma once

#include <string>
#include <string_view>

namespace pharos::data {

/// 32 lower-case hexadecimal digits.
std::string md5_hex(std::string_view text);

}  // namespace pharos::data
