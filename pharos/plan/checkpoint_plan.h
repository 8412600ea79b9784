// Size and number of a run's checkpoints.
#pragma once

#include <cstdint>

#include "pharos/comm/mesh.h"
#include "pharos/config/resolve.h"
#include "pharos/plan/parameters.h"

namespace pharos::plan {

struct CheckpointPlan {
  double tensor_bytes = 0;  ///< weights and optimizer state, without headers
  double size_bytes = 0;    ///< of one checkpoint folder
  std::int64_t num_saves = 0;
  std::int64_t num_kept = 0;  ///< at the end of the run
  double kept_bytes() const { return size_bytes * static_cast<double>(num_kept); }
};

/// Tensors and headers are counted piece by piece, to the byte for one rank (with more ranks every tensor has some more
/// bytes of header and manifest). train_state.json grows by a few bytes as its numbers do.
CheckpointPlan plan_checkpoints(const config::ResolvedConfig& resolved, const comm::Mesh& mesh,
                                std::int64_t iterations);

}  // namespace pharos::plan
