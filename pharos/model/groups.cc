#include "pharos/model/groups.h"

#include <vector>

namespace pharos::model {

ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh, bool has_experts) {
  using comm::MeshDim;
  const auto along = [&](std::vector<MeshDim> dims) -> comm::Group* {
    std::erase_if(dims, [&](MeshDim dim) { return mesh.size(dim) == 1; });
    return dims.empty() ? nullptr : &world.group(mesh, dims);
  };
  ParallelGroups groups{.tensor = along({MeshDim::kTensor}), .context = along({MeshDim::kContext})};
  if (!has_experts) return groups;
  groups.expert = along({MeshDim::kExpert});
  groups.expert_tensor = along({MeshDim::kExpertTensor});
  groups.expert_both = along({MeshDim::kExpertTensor, MeshDim::kExpert});
  groups.tokens = along({MeshDim::kTensor, MeshDim::kContext});
  // A group of its own even where its ranks are those of another one: gradients that are reduced as soon as they are
  // there would come between its calls at places that differ between ranks.
  const auto stage = mesh.group(world.rank(), {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData});
  if (stage.size() > 1) groups.balance = &world.group("balance", stage);
  return groups;
}

}  // namespace pharos::model
