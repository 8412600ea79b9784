// Patterns of the names of weights: optimizer.freeze and optimizer.lr_scales.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pharos::config {

/// Whether `name` is `pattern`, in which each * stands for any text, also for none or one with dots.
bool matches_pattern(std::string_view pattern, std::string_view name);

/// An entry of optimizer.lr_scales.
struct LrScale {
  std::string pattern;
  double factor = 1;  ///< on the learning rate; 0: the weights stay as they are
};

/// From "PATTERN=FACTOR". UserError quoting an entry that is not of this form, or whose factor is negative or not
/// finite.
std::vector<LrScale> parse_lr_scales(const std::vector<std::string>& texts);

}  // namespace pharos::config
