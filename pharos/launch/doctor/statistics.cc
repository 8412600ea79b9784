#include "pharos/launch/doctor/statistics.h"

#include <algorithm>
#include <cmath>

namespace pharos::launch {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<std::size_t> find_slow(const std::vector<double>& values) {
  if (values.size() < 2) return {};
  const double middle = values.size() == 2 ? std::max(values[0], values[1]) : median_of(values);
  double least_distance = 0.25 * middle;
  if (values.size() > 2) {
    std::vector<double> distances;
    for (const double value : values) distances.push_back(std::abs(value - middle));
    least_distance = std::max(0.1 * middle, 5 * 1.4826 * median_of(distances));
  }
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < middle - least_distance) slow.push_back(i);
  }
  return slow;
}

double spread_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  const double middle = median_of(values);
  return middle > 0 ? (*greatest - *least) / middle : 0;
}

}  // namespace pharos::launch
