// Which of several equal machines is slower than the others.
#pragma once

#include <cstddef>
#include <vector>

namespace pharos::launch {

/// 0 for none; the mean of the middle two for an even number.
double median_of(std::vector<double> values);

/// Indices of those that are slow beyond doubt: lower than the median by more than 10 % and by more than five times the
/// usual distance from it (1.4826 × the median of |value − median|, which is the standard deviation of a normal
/// distribution and is not moved by the outliers themselves). Of two, the lower one when it is below 75 % of the other;
/// of one, none.
std::vector<std::size_t> find_slow(const std::vector<double>& values);

/// (greatest − least) / median; 0 for fewer than two.
double spread_of(const std::vector<double>& values);

}  // namespace pharos::launch
