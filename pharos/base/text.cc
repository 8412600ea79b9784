#include "pharos/base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace pharos::base {
namespace {

template <typename... Arguments>
std::string print(const char* format, Arguments... arguments) {
  char text[64];
  std::snprintf(text, sizeof text, format, arguments...);
  return text;
}

/// Three significant digits.
std::string print_scaled(double value, const char* unit) {
  const int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return print("%.*f %s", digits, value, unit);
}

/// Edit distance with transposition of neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous.swap(current);
  }
  return previous[b.size()];
}

std::string_view last_part(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? print("%.0f B", bytes) : print_scaled(bytes, kUnits[unit]);
}

std::string format_duration(std::int64_t duration_ns) {
  const double seconds = static_cast<double>(duration_ns) / 1e9;
  if (seconds < 1e-3) return print_scaled(seconds * 1e6, "µs");
  if (seconds < 1) return print_scaled(seconds * 1e3, "ms");
  if (seconds < 60) return print_scaled(seconds, "s");
  const long long whole = std::llround(seconds);
  if (whole < 3600) return print("%lld min %02lld s", whole / 60, whole % 60);
  if (whole < 86400) return print("%lld h %02lld min", whole / 3600, whole / 60 % 60);
  return print("%lld d %02lld h", whole / 86400, whole / 3600 % 24);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", "K", "M", "B", "T"};
  std::size_t unit = 0;
  while (count >= 1000 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? print("%.0f", count) : print_scaled(count, kUnits[unit]);
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& known,
                                       std::size_t limit) {
  struct Candidate {
    std::size_t distance;
    const std::string* name;
  };
  std::vector<Candidate> candidates;
  for (const auto& candidate : known) {
    std::size_t distance = edit_distance(name, candidate);
    const bool same_last_part = last_part(name) == last_part(candidate);
    if (same_last_part) distance = std::min<std::size_t>(distance, 1);
    const std::size_t last_distance = edit_distance(last_part(name), last_part(candidate));
    if (last_distance <= last_part(candidate).size() / 4) distance = std::min(distance, last_distance + 1);
    if (distance <= std::max<std::size_t>(1, std::max(name.size(), candidate.size()) / 3))
      candidates.push_back({distance, &candidate});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.distance < b.distance; });
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(limit, candidates.size()); ++i) names.push_back(*candidates[i].name);
  return names;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

}  // namespace pharos::base
