#include "pharos/comm/parallel_sizes.h"

#include "pharos/config/derived.h"

namespace pharos::comm {

ParallelSizes parallel_sizes(const config::RunConfig& config) {
  const config::ModelConfig& model = config.model;
  return {.tensor = model.tensor_model_parallel_size,
          .context = model.context_parallel_size,
          .pipeline = model.pipeline_model_parallel_size,
          .expert = model.expert_model_parallel_size,
          .expert_tensor = config::expert_tensor_parallel_size_or_default(model),
          .tensor_pipeline_data_order = config.dist.use_tp_pp_dp_mapping};
}

}  // namespace pharos::comm
