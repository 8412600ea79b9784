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

namespace {

comm::Group& loss_group(comm::World& world, const comm::Mesh& mesh) {
  std::vector<MeshDim> dims{MeshDim::kData};
  if (mesh.size(MeshDim::kContext) > 1) dims.push_back(MeshDim::kContext);
  if (mesh.size(MeshDim::kPipeline) > 1) dims.push_back(MeshDim::kPipeline);
  return world.group(mesh, dims);
}

comm::Group* transfer_group(comm::World& world, const comm::Mesh& mesh, const char* name) {
  if (mesh.size(MeshDim::kPipeline) == 1) return nullptr;
  return &world.group(name, mesh.group(world.rank(), {MeshDim::kPipeline}));
}

/// The group along those of `dims` that have several ranks; null: this rank alone.
comm::Group* group_along(comm::World& world, const comm::Mesh& mesh, std::vector<MeshDim> dims) {
  std::erase_if(dims, [&](MeshDim dim) { return mesh.size(dim) == 1; });
  return dims.empty() ? nullptr : &world.group(mesh, dims);
}

model::ParallelGroups model_groups(comm::World& world, const comm::Mesh& mesh, const config::ModelConfig& model) {
  model::ParallelGroups groups{.tensor = group_along(world, mesh, {MeshDim::kTensor}),
                               .context = group_along(world, mesh, {MeshDim::kContext})};
  if (!model.num_moe_experts) return groups;
  groups.expert = group_along(world, mesh, {MeshDim::kExpert});
  groups.expert_tensor = group_along(world, mesh, {MeshDim::kExpertTensor});
  groups.expert_both = group_along(world, mesh, {MeshDim::kExpertTensor, MeshDim::kExpert});
  groups.tokens = group_along(world, mesh, {MeshDim::kTensor, MeshDim::kContext});
  // A group of its own even where its ranks are those of another one: gradients that are reduced as soon as they are
  // there would come between its calls at places that differ between ranks.
  const auto stage = mesh.group(world.rank(), {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData});
  if (stage.size() > 1) groups.balance = &world.group("balance", stage);
  return groups;
}

}  // namespace

Parallel::Parallel(comm::World& world, const config::RunConfig& config)
    : world(world),
      rank(world.rank()),
      mesh(world.size(), comm::parallel_sizes(config)),
      all(world.all()),
      tensor(world.group(mesh, {MeshDim::kTensor})),
      data(world.group(mesh, {MeshDim::kData})),
      context(world.group(mesh, {MeshDim::kContext})),
      pipeline(world.group(mesh, {MeshDim::kPipeline})),
      losses(loss_group(world, mesh)),
      ascending(transfer_group(world, mesh, "pp-up")),
      descending(transfer_group(world, mesh, "pp-down")),
      model(model_groups(world, mesh, config.model)) {}

pipeline::Channels Parallel::channels() const { return {.ascending = ascending, .descending = descending}; }

}  // namespace pharos::train
