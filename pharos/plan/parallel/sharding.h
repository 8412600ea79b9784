// What data-parallel ranks divide among themselves (ZeRO stages 1, 2, 3: Rajbhandari et al. 2020).
#pragma once

#include <cstdint>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"

namespace pharos::plan {

struct Sharding {
  config::ShardingStrategy strategy = config::ShardingStrategy::kNoShard;
  std::int64_t ranks = 1;                 ///< that hold copies of the same parameters
  double gradient_bytes_per_element = 4;  ///< while gradients are reduced

  double shards() const { return static_cast<double>(ranks); }
  bool divides_state() const { return strategy != config::ShardingStrategy::kNoShard; }
  bool divides_gradients() const { return strategy == config::ShardingStrategy::kOptimGrads || divides_weights(); }
  bool divides_weights() const { return strategy == config::ShardingStrategy::kOptimGradsParams; }
};

/// As optim::data_parallel_options() has it: over data- and context-parallel ranks. Gradients are reduced in fp32, or
/// with ddp.grad_reduce_in_fp32 = false in the compute type.
Sharding sharding_of(const config::RunConfig& config, const comm::Mesh& mesh);
/// That of experts, over expert-data-parallel ranks.
Sharding expert_sharding_of(const config::RunConfig& config, const comm::Mesh& mesh);

/// Bytes of a weight in the compute type.
double weight_bytes_per_element(const config::RunConfig& config);

}  // namespace pharos::plan
