// From a `dataset` section to the three datasets of a run: prefixes, blends, splits, mock data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/data/gpt_dataset.h"
#include "pharos/data/index/blend_index.h"
#include "pharos/data/sample_dataset.h"

namespace pharos::data {

/// A list of datasets, weighted or not.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights = std::nullopt;  ///< as given, not normalised
};

/// ["p"], ["p1", "p2", …], or ["w1", "p1", "w2", "p2", …]: an even number of words with a number at every even place is
/// weighted.
Blend parse_blend(const std::vector<std::string>& words);

/// What data a run reads. Exactly one of the two is set; neither: mock data.
struct DataSources {
  std::vector<std::string> blend = {};  ///< divided by `split`
  std::vector<std::vector<std::string>> blend_per_split =
      {};                                           ///< three blends, each used whole; an empty one: no dataset
  std::optional<std::string> split = std::nullopt;  ///< unset: "1,1,1" for mock data, "969,30,1" otherwise
};

/// Samples drawn from several datasets by weight, or all samples of all of them.
class BlendedDataset : public SampleDataset {
 public:
  /// `num_samples` unset: every sample once. Otherwise `weights` (above 0, sum 1), and as many samples. UserError
  /// mentioning mid_level_dataset_surplus if a dataset has fewer samples than its weight asks for.
  BlendedDataset(std::vector<std::unique_ptr<GptDataset>> datasets, std::vector<double> weights,
                 std::optional<std::int64_t> num_samples, Split split, const GptDatasetOptions& options);

  std::int64_t length() const override { return index_.dataset_index.size(); }
  std::int64_t seq_length() const override { return seq_length_; }
  void read(std::int64_t index, const SampleRow& row) const override;

  const std::vector<std::unique_ptr<GptDataset>>& datasets() const { return datasets_; }
  const BlendIndex& index() const { return index_; }

 private:
  void build_or_load_index(const std::vector<double>& weights, std::optional<std::int64_t> num_samples, Split split,
                           const GptDatasetOptions& options);
  void check_sizes() const;

  std::vector<std::unique_ptr<GptDataset>> datasets_;
  std::int64_t seq_length_;
  BlendIndex index_;
};

/// Training, validation and test; null where there is no share or no sample is wanted.
using DatasetSet = std::array<std::unique_ptr<SampleDataset>, 3>;
/// Samples wanted of each split; unset: one epoch. 0: do not build it.
using SampleCounts = std::array<std::optional<std::int64_t>, 3>;

/// Opens and indexes everything. UserErrors: missing or damaged files, a dataset shorter than one sample as a whole, a
/// split that comes out without sequences though samples are asked of it, weights without a number of samples.
DatasetSet build_datasets(const DataSources& sources, const SampleCounts& num_samples,
                          const GptDatasetOptions& options);

}  // namespace pharos::data
