// Training, validation and test data of a run as microbatches of tensors. A microbatch is a pure function of the
// configuration and the samples consumed before it, so a resumed run needs no state of its data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "pharos/config/run_config.h"
#include "pharos/train/data/microbatch.h"

namespace pharos::train {

enum class DataSplit : std::uint8_t { kTrain, kValidation, kTest };

/// Samples that training takes in all, which an index of them is made for.
std::int64_t num_training_samples(const config::RunConfig& config, std::int64_t data_size);

class DataFeed {
 public:
  /// Opens (and where need be indexes) the datasets of `config` for data-parallel rank `data_rank` of `data_size`.
  /// `vocab_size`: token ids must be below it. UserError for missing, damaged or too small data.
  DataFeed(const config::RunConfig& config, std::int64_t data_rank, std::int64_t data_size);
  ~DataFeed();

  /// False when the split has no samples (its share is zero, or no evaluation is configured).
  bool has(DataSplit split) const;
  /// Samples in a split.
  std::int64_t num_samples(DataSplit split) const;
  /// Microbatch `index` of the step that starts after `consumed_samples` of this split.
  Microbatch microbatch(DataSplit split, std::int64_t consumed_samples, int index, at::Device device) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pharos::train
