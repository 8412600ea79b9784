#include "pharos/optim/parallel/parallel_groups.h"

#include <string>

#include "pharos/optim/parallel/model_ranges.h"

namespace pharos::optim {

ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh,
                               const std::vector<tensor::Parameter*>& parameters) {
  using comm::MeshDim;
  const auto group_along = [&](const std::vector<MeshDim>& dims) -> comm::Group* {
    return mesh.group(world.rank(), dims).size() > 1 ? &world.group(mesh, dims) : nullptr;
  };
  ParallelGroups groups;
  groups.data = mesh.size(MeshDim::kContext) > 1 ? group_along({MeshDim::kData, MeshDim::kContext})
                                                 : group_along({MeshDim::kData});
  groups.tensor = group_along({MeshDim::kTensor});
  groups.pipeline = group_along({MeshDim::kPipeline});
  const std::vector<std::int64_t> ranks = mesh.group(world.rank(), {MeshDim::kTensor});
  for (const auto& [copies, ranges] : model_ranges(parameters, mesh, world.rank()).summed) {
    if (copies == mesh.size(MeshDim::kTensor)) {
      groups.sharing_tensor[copies] = groups.tensor;
      continue;
    }
    const auto first = ranks.begin() + mesh.coordinate(world.rank(), MeshDim::kTensor) / copies * copies;
    groups.sharing_tensor[copies] = &world.group("tp-replicas-" + std::to_string(copies), {first, first + copies});
  }
  return groups;
}

}  // namespace pharos::optim
