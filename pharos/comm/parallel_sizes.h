// The sizes of the mesh, as a configuration gives them.
#pragma once

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"

namespace pharos::comm {

/// Sizes of all dimensions but the data-parallel one, which follows from the number of ranks.
ParallelSizes parallel_sizes(const config::RunConfig& config);

}  // namespace pharos::comm
