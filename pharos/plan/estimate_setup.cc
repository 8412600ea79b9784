#include "pharos/plan/estimate_setup.h"

#include <algorithm>

#include "pharos/config/derived.h"

namespace pharos::plan {

std::int64_t final_global_batch_size(const config::RunConfig& config, std::int64_t data_parallel_size) {
  const std::int64_t samples = config::total_train_samples(config, data_parallel_size);
  return config::global_batch_size_at(config, std::max<std::int64_t>(0, samples - 1), data_parallel_size);
}

model::EstimateSetup estimate_setup(const config::RunConfig& config, const comm::Mesh& mesh) {
  const std::int64_t data = mesh.size(comm::MeshDim::kData), micro = *config.train.micro_batch_size;
  return {.data_parallel_size = data,
          .expert_data_parallel_size = mesh.size(comm::MeshDim::kExpertData),
          .micro_batch_size = micro,
          .num_microbatches = std::max<std::int64_t>(1, final_global_batch_size(config, data) / (micro * data)),
          .distributed_optimizer = config.optimizer.use_distributed_optimizer || config.ddp.use_distributed_optimizer};
}

}  // namespace pharos::plan
