#include "pharos/optim/parallel/parallel_groups.h"

#include <algorithm>
#include <string>

#include "pharos/base/error.h"
#include "pharos/optim/parallel/model_ranges.h"

namespace pharos::optim {

ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh,
                               const std::vector<tensor::Parameter*>& parameters, const PipelineEnds& ends) {
  using comm::MeshDim;
  const auto group_along = [&](const std::vector<MeshDim>& dims) -> comm::Group* {
    return mesh.group(world.rank(), dims).size() > 1 ? &world.group(mesh, dims) : nullptr;
  };
  ParallelGroups groups;
  groups.data = mesh.size(MeshDim::kContext) > 1 ? group_along({MeshDim::kData, MeshDim::kContext})
                                                 : group_along({MeshDim::kData});
  groups.tensor = group_along({MeshDim::kTensor});
  groups.pipeline = group_along({MeshDim::kPipeline});
  const bool has_experts = std::any_of(parameters.begin(), parameters.end(), [](const tensor::Parameter* parameter) {
    return tensor::is_expert(*parameter);
  });
  if (has_experts) {  // ranks of a stage have the same layers, so that all members of these groups come here
    groups.expert_data = group_along({MeshDim::kExpertData});
    groups.expert_model = group_along({MeshDim::kExpertTensor, MeshDim::kExpert});
  }
  const std::vector<std::int64_t> ranks = mesh.group(world.rank(), {MeshDim::kTensor});
  for (const auto& [copies, ranges] : model_ranges(parameters, mesh, world.rank()).summed) {
    if (copies == mesh.size(MeshDim::kTensor)) {
      groups.sharing_tensor[copies] = groups.tensor;
      continue;
    }
    const auto first = ranks.begin() + mesh.coordinate(world.rank(), MeshDim::kTensor) / copies * copies;
    groups.sharing_tensor[copies] = &world.group("tp-replicas-" + std::to_string(copies), {first, first + copies});
  }
  const bool is_tied = std::any_of(parameters.begin(), parameters.end(), [](const tensor::Parameter* parameter) {
    return parameter->tie != tensor::Parameter::Tie::kNone;
  });
  if (!is_tied) return groups;
  const std::int64_t stage = mesh.coordinate(world.rank(), MeshDim::kPipeline);
  PHAROS_CHECK(ends.embedding != ends.output && (stage == ends.embedding || stage == ends.output),
               "tied weights on pipeline rank " + std::to_string(stage) + ", which is none of the two ends");
  const std::vector<std::int64_t> stages = mesh.group(world.rank(), {MeshDim::kPipeline});
  const auto [low, high] = std::minmax(ends.embedding, ends.output);
  groups.tied =
      &world.group("tied", {stages.at(static_cast<std::size_t>(low)), stages.at(static_cast<std::size_t>(high))});
  return groups;
}

}  // namespace pharos::optim
