#include "pharos/train/parallel.h"

#include <algorithm>

#include "pharos/comm/parallel_sizes.h"
#include "pharos/model/groups.h"

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
      model(model::parallel_groups(world, mesh, config.model.num_moe_experts.has_value())) {}

pipeline::Channels Parallel::channels() const { return {.ascending = ascending, .descending = descending}; }

}  // namespace pharos::train
