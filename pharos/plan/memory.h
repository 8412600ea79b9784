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
  /// The largest peak if in every layer with experts all tokens chose those of one rank; 0 without experts.
  double worst_peak_bytes = 0;
  double part(const std::string& key) const;
};

/// With experts, every one of them gets as many tokens (worst_peak_bytes beside). What data-parallel ranks, for experts
/// expert-data-parallel ranks, divide is counted once over them: by strategy moments and main parameters (optim),
/// gradients too (optim_grads: this rank's shard and the units being reduced), weights too (optim_grads_params: the
/// shard and the gathered units); one unit at a time, or two when reduction or gathering overlap. A unit is a layer or
/// what comes before or after all of them. `data_bytes`: indices and mapped pages of the data (DatasetPlan).
MemoryPlan plan_memory(const config::RunConfig& config, const comm::Mesh& mesh, const ParameterPlan& parameters,
                       double data_bytes);

}  // namespace pharos::plan
