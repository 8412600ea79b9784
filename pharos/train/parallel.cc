#include "pharos/train/parallel.h"

#include "pharos/comm/parallel_sizes.h"

namespace pharos::train {

using comm::MeshDim;

Parallel::Parallel(comm::World& world, const config::RunConfig& config)
    : world(world),
      rank(world.rank()),
      mesh(world.size(), comm::parallel_sizes(config)),
      all(world.all()),
      tensor(world.group(mesh, {MeshDim::kTensor})),
      data(world.group(mesh, {MeshDim::kData})) {}

model::ParallelGroups Parallel::model_groups() const { return {.tensor = tensor.size() > 1 ? &tensor : nullptr}; }

}  // namespace pharos::train
