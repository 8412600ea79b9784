#include "pharos/train/parallel.h"

#include <algorithm>

#include "pharos/comm/parallel_sizes.h"

namespace pharos::train {

using comm::MeshDim;

std::chrono::milliseconds step_timeout(const config::DistConfig& dist, std::chrono::milliseconds first_step) {
  if (dist.distributed_timeout_seconds_after_init) {
    return std::chrono::seconds(*dist.distributed_timeout_seconds_after_init);
  }
  const std::chrono::milliseconds longest = std::chrono::minutes(dist.distributed_timeout_minutes);
  return std::min(longest, std::max<std::chrono::milliseconds>(std::chrono::minutes(2), 10 * first_step));
}

Parallel::Parallel(comm::World& world, const config::RunConfig& config)
    : world(world),
      rank(world.rank()),
      mesh(world.size(), comm::parallel_sizes(config)),
      all(world.all()),
      tensor(world.group(mesh, {MeshDim::kTensor})),
      data(world.group(mesh, {MeshDim::kData})) {}

model::ParallelGroups Parallel::model_groups() const { return {.tensor = tensor.size() > 1 ? &tensor : nullptr}; }

}  // namespace pharos::train
