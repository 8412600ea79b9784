// Memory that one rank of a training run needs at its peak, by component.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/plan/parameters.h"

namespace pharos::plan {

struct MemoryPart {
  std::string key;    ///< as in the JSON
  std::string label;  ///< for people
  double bytes = 0;
};

struct MemoryPlan {
  std::int64_t pipeline_rank = 0;           ///< whose memory this is: the one that needs most
  std::string phase;                        ///< when the peak is reached: "loss", "mlp backward", …
  std::vector<MemoryPart> parts;            ///< what is alive then
  double peak_bytes = 0;                    ///< their sum
  std::vector<double> peak_bytes_of_ranks;  ///< [pipeline rank]
  double part(const std::string& key) const;
};

/// What data-parallel ranks divide is counted once over them: by strategy moments and main parameters (optim),
/// gradients too (optim_grads: this rank's shard and the units being reduced), weights too (optim_grads_params: the
/// shard and the gathered units); one unit at a time, or two when reduction or gathering overlap. A unit is a layer or
/// what comes before or after all of them. `data_bytes`: indices and mapped pages of the data (DatasetPlan).
/// Activations of models that are planned by formula are Megatron's estimate, scaled to the compute type.
MemoryPlan plan_memory(const config::RunConfig& config, const comm::Mesh& mesh, const ParameterPlan& parameters,
                       double data_bytes);

}  // namespace pharos::plan
