// How the ranks of a data-parallel group divide what they would otherwise all hold (ZeRO, Rajbhandari et al. 2020), and
// how their gradients become one: the settings of the sections ddp and optimizer.
#pragma once

#include <cstdint>
#include <optional>

#include "pharos/config/run_config.h"
#include "pharos/optim/flat_layout.h"

namespace pharos::optim {

/// The parameters of each model chunk of a rank, in the order of the model and in forward order within. A parameter
/// that two chunks use is in the first of them.
using ModelChunks = std::vector<std::vector<tensor::Parameter*>>;

/// All of them, one chunk after the other: the parameters by number.
std::vector<tensor::Parameter*> all_parameters(const ModelChunks& chunks);

/// Those with gradients (Parameter::trainable).
ModelChunks trainable_parameters(const ModelChunks& chunks);

struct DataParallelOptions {
  config::ShardingStrategy strategy = config::ShardingStrategy::kNoShard;
  bool overlap_grad_reduce = false;   ///< reduce a bucket as soon as its gradients are complete
  bool overlap_param_gather = false;  ///< gather values while others are in use
  bool average_in_collective = false;
  bool reduce_in_fp32 = true;                    ///< false: in the type of the parameters
  bool averages = true;                          ///< over the data-parallel ranks; false: sums (per-token loss)
  std::optional<std::int64_t> bucket_size = {};  ///< elements
  std::optional<std::int64_t> num_buckets = {};
};

/// The strategy no_shard with ddp.use_distributed_optimizer shards optimizer states, as in Megatron.
DataParallelOptions data_parallel_options(const config::RunConfig& config);

/// What each strategy divides.
constexpr bool shards_states(config::ShardingStrategy strategy) {
  return strategy != config::ShardingStrategy::kNoShard;
}
constexpr bool shards_gradients(config::ShardingStrategy strategy) {
  return strategy == config::ShardingStrategy::kOptimGrads || strategy == config::ShardingStrategy::kOptimGradsParams;
}
constexpr bool shards_values(config::ShardingStrategy strategy) {
  return strategy == config::ShardingStrategy::kOptimGradsParams;
}

/// Buckets of bucket_size elements, or num_buckets of about the same size, where given. Else along the layers where
/// gradients are sharded; of max(40 million, 1 million × data-parallel size) elements where their reduction overlaps
/// the backward pass; and one without overlap (bridge-config.md 1.11). In any case no bucket has parameters of two
/// model chunks, tied ones have their own, and experts are apart from the others.
FlatLayout data_parallel_layout(const ModelChunks& chunks, const DataParallelOptions& options,
                                std::int64_t data_parallel_size, std::int64_t expert_data_parallel_size = 1);

}  // namespace pharos::optim
