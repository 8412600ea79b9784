#include "pharos/data/index/blend_index.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace pharos::data {
namespace {

/// numpy.sum of doubles: plain below 8, eight running sums up to 128, halves beyond.
double pairwise_sum(const double* values, std::size_t count) {
  if (count < 8) return std::accumulate(values, values + count, 0.0);
  if (count > 128) {
    const std::size_t half = count / 2 - (count / 2) % 8;
    return pairwise_sum(values, half) + pairwise_sum(values + half, count - half);
  }
  double sums[8];
  std::copy(values, values + 8, sums);
  std::size_t i = 8;
  for (; i < count - count % 8; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += values[i + lane];
  }
  double total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < count; ++i) total += values[i];
  return total;
}

/// `limits[d]` samples at most from dataset d.
BlendIndex build(const std::vector<double>& weights, const std::vector<std::int64_t>& limits,
                 std::int64_t num_samples) {
  BlendIndex index{IntegerArray(IntegerType::kInt16, num_samples), IntegerArray(IntegerType::kInt64, num_samples)};
  const auto datasets = index.dataset_index.values<std::int16_t>();
  const auto samples = index.dataset_sample_index.values<std::int64_t>();
  std::vector<std::int64_t> given(weights.size(), 0);
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const double position = std::max(static_cast<double>(i), 1.0);
    double largest = -std::numeric_limits<double>::infinity();
    std::size_t chosen = 0;
    for (std::size_t d = 0; d < weights.size(); ++d) {
      if (given[d] == limits[d]) continue;
      const double lag = weights[d] * position - static_cast<double>(given[d]);
      if (lag > largest) {
        largest = lag;
        chosen = d;
      }
    }
    datasets[i] = static_cast<std::int16_t>(chosen);
    samples[i] = given[chosen]++;
  }
  return index;
}

}  // namespace

std::vector<double> normalize_weights(const std::vector<double>& weights) {
  const double total = pairwise_sum(weights.data(), weights.size());
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / total);
  return shares;
}

BlendIndex build_blend_index(const std::vector<double>& weights, std::int64_t num_samples) {
  const std::vector<std::int64_t> unlimited(weights.size(), std::numeric_limits<std::int64_t>::max());
  return build(weights, unlimited, num_samples);
}

BlendIndex build_exhaustive_blend_index(const std::vector<std::int64_t>& sizes) {
  const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::vector<double> weights;
  for (const std::int64_t size : sizes) weights.push_back(static_cast<double>(size) / static_cast<double>(total));
  return build(weights, sizes, total);
}

std::string check_blend_index(const BlendIndex& index, std::int64_t num_datasets, std::int64_t num_samples) {
  if (index.dataset_index.type() != IntegerType::kInt16 || index.dataset_index.rows() != num_samples ||
      index.dataset_index.columns() != 1) {
    return "the dataset index has the wrong size";
  }
  if (index.dataset_sample_index.type() != IntegerType::kInt64 || index.dataset_sample_index.rows() != num_samples ||
      index.dataset_sample_index.columns() != 1) {
    return "the dataset sample index has the wrong size";
  }
  std::vector<std::int64_t> given(static_cast<std::size_t>(num_datasets), 0);
  for (std::int64_t i = 0; i < num_samples; ++i) {
    const std::int64_t dataset = index.dataset_index[i];
    if (dataset < 0 || dataset >= num_datasets)
      return "sample " + std::to_string(i) + " names a dataset that does not exist";
    if (index.dataset_sample_index[i] != given[static_cast<std::size_t>(dataset)]++)
      return "sample " + std::to_string(i) + " is out of order";
  }
  return "";
}

}  // namespace pharos::data
