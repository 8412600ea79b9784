// What Megatron's estimate of memory reads beside the model.
#pragma once

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/model/theoretical_memory.h"

namespace pharos::plan {

/// At the final global batch size. `config` must be valid for the mesh's world size.
model::EstimateSetup estimate_setup(const config::RunConfig& config, const comm::Mesh& mesh);

/// The global batch size that the run ends with, samples.
std::int64_t final_global_batch_size(const config::RunConfig& config, std::int64_t data_parallel_size);

}  // namespace pharos::plan
