// Microbatches as contiguous buffers. What a microbatch holds depends only on the configuration and on how many samples
// were consumed, so a run resumes without any state of the loader.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/data/sample_dataset.h"
#include "pharos/data/samplers.h"

namespace pharos::data {

/// Row-major [rows, seq_length] buffers; meaning of the fields as in SampleRow.
struct Microbatch {
  std::int64_t rows = 0;
  std::int64_t seq_length = 0;
  std::vector<std::int64_t> sample_indices;  ///< [rows]
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> position_ids;
  std::vector<std::int64_t> segment_ids;
  std::vector<float> loss_mask;
};

class MicrobatchSource {
 public:
  /// `dataset` must outlive this. options.total_samples 0 stands for dataset.length().
  MicrobatchSource(const SampleDataset& dataset, SamplerOptions options);

  /// Microbatch `microbatch` (from 0) of this rank in the global batch that starts at `consumed_samples`. UserError
  /// when a `single` sampler has no samples left. May be called from several threads, with different targets.
  Microbatch get(std::int64_t consumed_samples, std::int64_t microbatch) const;
  /// The same into `target`, whose buffers are used again.
  void read(std::int64_t consumed_samples, std::int64_t microbatch, Microbatch& target) const;

  const SampleDataset& dataset() const { return dataset_; }
  const Sampler& sampler() const { return sampler_; }

 private:
  const SampleDataset& dataset_;
  Sampler sampler_;
};

}  // namespace pharos::data
