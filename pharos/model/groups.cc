#include "pharos/model/groups.h"

#include <vector>

namespace pharos::model {

ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh) {
  using comm::MeshDim;
  const auto group = [&](const std::vector<MeshDim>& dims) -> comm::Group* {
    return mesh.group(world.rank(), dims).size() > 1 ? &world.group(mesh, dims) : nullptr;
  };
  ParallelGroups groups;
  groups.tensor = group({MeshDim::kTensor});
  groups.context = group({MeshDim::kContext});
  groups.expert = group({MeshDim::kExpert});
  groups.expert_tensor = group({MeshDim::kExpertTensor});
  groups.expert_both = group({MeshDim::kExpertTensor, MeshDim::kExpert});
  groups.tokens = group({MeshDim::kTensor, MeshDim::kContext});
  groups.balance = group({MeshDim::kTensor, MeshDim::kContext, MeshDim::kData});
  return groups;
}

}  // namespace pharos::model
