// Scalars as environment variables spell them. The grammars are Python's, because that is what reads the same variables
// elsewhere (lens.md section 1.3); digits are ASCII only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pharos::lens {

/// Without the ASCII blanks (as Python's str.strip knows them) at both ends.
std::string_view trim_blanks(std::string_view text);

/// ASCII letters in lower case.
std::string lower_case(std::string_view text);

/// `1 true yes on` and `0 false no off` in any case, blanks around them; nullopt for everything else.
std::optional<bool> parse_boolean(std::string_view text);

/// Decimal, optional sign, blanks around it, single underscores between digits ("1_000"). nullopt for everything else
/// and for what does not fit in 64 bits.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// As Python's float(): ".5", "1e-1", "1_000.0", "inf", "-Infinity", "nan"; no hexadecimal. Too large gives infinity.
std::optional<double> parse_number(std::string_view text);

/// `text` with %XX decoded; a percent sign that does not start two hexadecimal digits stays. The result is valid UTF-8:
/// what is not becomes U+FFFD.
std::string decode_percent(std::string_view text);

/// `text` with each byte that is not part of valid UTF-8 replaced by U+FFFD; protobuf strings must be valid.
std::string make_valid_utf8(std::string_view text);

/// `text` as a message shows it: on one line, valid UTF-8, control characters as '?', beyond 100 bytes cut with "…".
std::string shown(std::string_view text);

}  // namespace pharos::lens
