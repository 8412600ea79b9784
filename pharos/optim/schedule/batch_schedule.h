// How many samples and microbatches a step has, as a function of the samples consumed so far (Megatron's microbatch
// calculators, and its linear ramp-up).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"

namespace pharos::optim {

struct BatchScheduleOptions {
  std::int64_t global_batch_size = 1;  ///< samples per step; the last size of a ramp-up
  std::int64_t micro_batch_size = 1;   ///< samples per rank and microbatch
  std::int64_t data_parallel_size = 1;
  bool decrease_batch_size_if_needed = false;
  /// {start, increment, samples}: sizes grow from start by increment, spread evenly over that many samples.
  std::optional<std::array<std::int64_t, 3>> rampup_batch_size = {};
  /// "0:768 250B:1536" (config/batch_schedule.h); replaces global_batch_size.
  std::optional<std::string> step_batch_size_schedule = {};
  std::int64_t seq_length = 0;  ///< turns the thresholds, then tokens, into samples; 0: they are samples
};

struct BatchSize {
  std::int64_t num_microbatches;           ///< per data-parallel rank
  std::int64_t current_global_batch_size;  ///< what the schedule asks for, samples
  std::int64_t running_global_batch_size;  ///< what the step consumes: the largest multiple of micro × data parallel
  bool operator==(const BatchSize&) const = default;
};

class BatchSchedule {
 public:
  /// UserError when a size of the schedule is no multiple of micro_batch_size × data_parallel_size (with
  /// decrease_batch_size_if_needed: smaller than that), when a ramp-up does not reach the global batch size in whole
  /// increments, or when both kinds of schedule are given.
  explicit BatchSchedule(const BatchScheduleOptions& options);

  /// Size of the step that starts after `consumed_samples`.
  BatchSize at(std::int64_t consumed_samples) const;
  /// Samples that the first `num_steps` steps consume.
  std::int64_t samples_after(std::int64_t num_steps) const;

 private:
  struct Step {
    std::int64_t first_sample;  ///< consumed samples from which on this size holds
    std::int64_t global_batch_size;
  };
  BatchSize size_of(const Step& step) const;

  std::int64_t samples_per_microbatch_;  ///< over all data-parallel ranks
  std::vector<Step> steps_;
};

BatchScheduleOptions batch_schedule_options(const config::RunConfig& config, std::int64_t data_parallel_size);

}  // namespace pharos::optim
