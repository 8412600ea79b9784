#include "pharos/config/grammar/name_patterns.h"

#include <charconv>
#include <cmath>

#include "pharos/base/error.h"

namespace pharos::config {

bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t place = 0, at = 0;                                    // in the pattern, in the name
  std::size_t after_star = std::string_view::npos, star_begin = 0;  // where to go on when the last * takes one more
  while (at < name.size()) {
    if (place < pattern.size() && pattern[place] == '*') {
      after_star = ++place;
      star_begin = at;
    } else if (place < pattern.size() && pattern[place] == name[at]) {
      ++place;
      ++at;
    } else if (after_star != std::string_view::npos) {
      place = after_star;
      at = ++star_begin;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', place) == std::string_view::npos;
}

std::vector<LrScale> parse_lr_scales(const std::vector<std::string>& texts) {
  std::vector<LrScale> scales;
  for (const std::string& text : texts) {
    const std::size_t equals = text.rfind('=');
    const char* const end = text.data() + text.size();
    LrScale scale{.pattern = text.substr(0, equals)};
    bool is_sound = equals != std::string::npos && equals > 0;
    if (is_sound) {
      const auto [rest, error] = std::from_chars(text.data() + equals + 1, end, scale.factor);
      is_sound = error == std::errc() && rest == end && std::isfinite(scale.factor) && scale.factor >= 0;
    }
    if (!is_sound) {
      throw base::UserError({.what = "optimizer.lr_scales has '" + text + "', which is not PATTERN=FACTOR.",
                             .why = "The factor is a number from 0 on.",
                             .fix = "Write for example optimizer.lr_scales=['decoder.layers.0.*=0.1']."});
    }
    scales.push_back(std::move(scale));
  }
  return scales;
}

}  // namespace pharos::config
