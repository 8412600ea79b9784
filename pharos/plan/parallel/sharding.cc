#include "pharos/plan/parallel/sharding.h"

#include "pharos/config/derived.h"
#include "pharos/optim/parallel/sharding.h"

namespace pharos::plan {

double weight_bytes_per_element(const config::RunConfig& config) {
  return config::compute_dtype(config.model) == config::DType::kFloat32 ? 4 : 2;
}

Sharding sharding_of(const config::RunConfig& config, const comm::Mesh& mesh) {
  const optim::DataParallelOptions options = optim::data_parallel_options(config);
  Sharding sharding;
  sharding.strategy = options.strategy;
  sharding.ranks = mesh.size(comm::MeshDim::kData) * mesh.size(comm::MeshDim::kContext);
  sharding.gradient_bytes_per_element = options.reduce_in_fp32 ? 4 : weight_bytes_per_element(config);
  return sharding;
}

Sharding expert_sharding_of(const config::RunConfig& config, const comm::Mesh& mesh) {
  Sharding sharding = sharding_of(config, mesh);
  sharding.ranks = mesh.size(comm::MeshDim::kExpertData);
  return sharding;
}

}  // namespace pharos::plan
