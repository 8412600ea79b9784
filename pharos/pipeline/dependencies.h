// Who waits for whom: the one place that knows how activations and gradients flow along the stages.
#pragma once

#include <optional>
#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

constexpr int kNumPhases = 3;

/// The stage whose same phase of the same microbatch must have ended: a forward waits for the stage before, a backward
/// for the stage behind. A weight gradient, the first forward and the last backward wait only for their own rank.
inline std::optional<int> awaited_stage(Phase phase, int stage, int num_stages) {
  if (phase == Phase::kForward && stage > 0) return stage - 1;
  if (phase == Phase::kBackward && stage < num_stages - 1) return stage + 1;
  return std::nullopt;
}

/// The stage that waits for this one in the same phase: the inverse of awaited_stage().
inline std::optional<int> waiting_stage(Phase phase, int stage, int num_stages) {
  if (phase == Phase::kForward && stage < num_stages - 1) return stage + 1;
  if (phase == Phase::kBackward && stage > 0) return stage - 1;
  return std::nullopt;
}

struct StageHolder {
  int rank;
  int chunk;
};

/// [stage] -> where it is. The schedule's shape must be sound.
inline std::vector<StageHolder> stage_holders(const Schedule& schedule) {
  std::vector<StageHolder> holders(static_cast<std::size_t>(schedule.num_ranks) * schedule.num_chunks);
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (int chunk = 0; chunk < schedule.num_chunks; ++chunk) {
      holders[schedule.stage_of[rank][chunk]] = {rank, chunk};
    }
  }
  return holders;
}

}  // namespace pharos::pipeline
