#include "pharos/plan/parallel/sharding.h"

#include "pharos/config/derived.h"

namespace pharos::plan {

double weight_bytes_per_element(const config::RunConfig& config) {
  return config::compute_dtype(config.model) == config::DType::kFloat32 ? 4 : 2;
}

Sharding sharding_of(const config::RunConfig& config, const comm::Mesh& mesh) {
  Sharding sharding;
  sharding.strategy = config.ddp.data_parallel_sharding_strategy;
  sharding.ranks = mesh.size(comm::MeshDim::kData) * mesh.size(comm::MeshDim::kContext);
  const bool is_distributed = config.optimizer.use_distributed_optimizer || config.ddp.use_distributed_optimizer;
  if (is_distributed && !sharding.divides_state()) sharding.strategy = config::ShardingStrategy::kOptim;
  sharding.gradient_bytes_per_element = config.ddp.grad_reduce_in_fp32 ? 4 : weight_bytes_per_element(config);
  return sharding;
}

}  // namespace pharos::plan
