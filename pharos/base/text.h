// Text for people: units, nearest names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::base {

/// "1.50 GiB", "12.0 KiB", "17 B".
std::string format_bytes(double bytes);

/// "2.31 ms", "1.20 s", "3 min 05 s", "2 h 10 min".
std::string format_duration(std::int64_t duration_ns);

/// Count with a decimal unit: "26.9 M", "1.20 B", "512".
std::string format_count(double count);

/// The (at most `limit`) names of `known` nearest to `name` by edit distance, nearest first; only those that plausibly
/// are what was meant (distance at most a third of the length, or the last dotted part equal).
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known,
                                       std::size_t limit = 3);

/// Characters (code points) of UTF-8 `text`.
std::size_t count_characters(std::string_view text);

/// `parts` with `separator` between them.
std::string join(const std::vector<std::string>& parts, std::string_view separator);

}  // namespace pharos::base
