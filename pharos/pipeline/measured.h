// What a rank really did in one step: the measured counterpart of a timeline. Knows no torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// Times in nanoseconds since the Unix epoch, by a clock that never steps within a process (base::steady_wall_ns()).
struct MeasuredAction {
  Action action;
  std::int64_t asked_ns = 0;  ///< the rank was free for it; until start_ns it waited for its input
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  bool operator==(const MeasuredAction&) const = default;
};

/// One rank's actions of one step, in order.
struct MeasuredStep {
  std::int64_t step = 0;      ///< from 1, as in the log
  std::string schedule = {};  ///< name
  int num_ranks = 1;
  int num_chunks = 1;
  int num_microbatches = 1;
  int rank = 0;                  ///< in the pipeline
  std::vector<int> stages = {};  ///< [chunk]
  std::vector<MeasuredAction> actions = {};
  std::int64_t bytes_sent = 0;             ///< to other ranks
  std::int64_t peak_activation_bytes = 0;  ///< kept between forward and backward at once; 0: not measured
  std::int64_t global_rank = 0;
  std::int64_t replica = 0;  ///< which pipeline, by the global rank that is first in it
  bool operator==(const MeasuredStep&) const = default;
};

}  // namespace pharos::pipeline
