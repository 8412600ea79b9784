// Which dataset of a blend each sample comes from, as Megatron Core decides it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/data/index/integer_array.h"

namespace pharos::data {

struct BlendIndex {
  IntegerArray dataset_index;         ///< int16 [samples]: dataset
  IntegerArray dataset_sample_index;  ///< int64 [samples]: sample within it
};

/// weights / sum(weights), the sum in numpy's pairwise order.
std::vector<double> normalize_weights(const std::vector<double>& weights);

/// Each sample comes from the dataset that lags most behind its weight: the first with the largest
/// weight * max(i, 1) - (samples it has given). `weights` sum to 1; at most 32,767 datasets.
BlendIndex build_blend_index(const std::vector<double>& weights, std::int64_t num_samples);

/// All samples of all datasets: weights are the shares of `sizes`, and a dataset that is used up drops out.
BlendIndex build_exhaustive_blend_index(const std::vector<std::int64_t>& sizes);

/// Empty if the index has `num_samples` entries, each naming the next unused sample of one of `num_datasets`; else what
/// is wrong.
std::string check_blend_index(const BlendIndex& index, std::int64_t num_datasets, std::int64_t num_samples);

}  // namespace pharos::data
