// Global batch sizes that change over the run: train.rampup_batch_size and train.step_batch_size_schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"

namespace pharos::config {

struct BatchStep {
  std::int64_t first_token;        ///< consumed tokens from which on this size holds
  std::int64_t global_batch_size;  ///< samples
  bool operator==(const BatchStep&) const = default;
};

/// Parses "0:768 250B:1536" (comma or space between entries; suffix K, M, B, T is 10^3 … 10^12). The first threshold is
/// 0, thresholds increase strictly, sizes are positive. Throws UserError naming the entry.
std::vector<BatchStep> parse_batch_schedule(const std::string& text);

/// Every global batch size that a step of the run has, in samples, smallest first. Empty for a run without steps.
std::vector<std::int64_t> global_batch_sizes(const RunConfig& config, std::int64_t data_parallel);

}  // namespace pharos::config
