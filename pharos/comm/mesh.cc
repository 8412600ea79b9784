#include "pharos/comm/mesh.h"

#include <algorithm>

#include "pharos/base/error.h"

namespace pharos::comm {
namespace {

bool is_expert_dim(MeshDim dim) {
  return dim == MeshDim::kExpertTensor || dim == MeshDim::kExpert || dim == MeshDim::kExpertData;
}

std::int64_t divide_world(std::int64_t world_size, std::int64_t product, const std::string& factors) {
  if (world_size > 0 && product > 0 && world_size % product == 0) return world_size / product;
  throw base::UserError({.what = "world size " + std::to_string(world_size) + " is not divisible by " + factors +
                                 " = " + std::to_string(product) + ".",
                         .where = "model",
                         .fix = "Start a multiple of " + std::to_string(std::max<std::int64_t>(1, product)) +
                                " ranks or lower a parallel size."});
}

}  // namespace

const char* mesh_dim_name(MeshDim dim) {
  static constexpr const char* kNames[] = {"tp", "cp", "dp", "pp", "etp", "ep", "edp"};
  return kNames[static_cast<int>(dim)];
}

Mesh::Mesh(std::int64_t world_size, const ParallelSizes& sizes) : world_size_(world_size) {
  const auto data = divide_world(world_size, sizes.tensor * sizes.pipeline * sizes.context, "TP*PP*CP");
  const auto expert_data = divide_world(world_size, sizes.expert_tensor * sizes.expert * sizes.pipeline, "ETP*EP*PP");
  dense_ = {{MeshDim::kTensor, sizes.tensor, 0},
            {MeshDim::kContext, sizes.context, 0},
            {MeshDim::kData, data, 0},
            {MeshDim::kPipeline, sizes.pipeline, 0}};
  expert_ = {{MeshDim::kExpertTensor, sizes.expert_tensor, 0},
             {MeshDim::kExpert, sizes.expert, 0},
             {MeshDim::kExpertData, expert_data, 0},
             {MeshDim::kPipeline, sizes.pipeline, 0}};
  for (auto* layout : {&dense_, &expert_}) {
    if (sizes.tensor_pipeline_data_order) std::swap((*layout)[2], (*layout)[3]);
    std::int64_t stride = 1;
    for (auto& axis : *layout) {
      axis.stride = stride;
      stride *= axis.size;
    }
  }
  if (sizes.pipeline > 1 &&
      axis(MeshDim::kPipeline).stride != std::find_if(expert_.begin(), expert_.end(), [](const Axis& a) {
                                           return a.dim == MeshDim::kPipeline;
                                         })->stride) {
    throw base::UserError({.what = "The pipeline groups of dense and expert parameters differ.",
                           .where = "dist.use_tp_pp_dp_mapping",
                           .why = "With pipeline before data in the rank order, TP*CP must equal ETP*EP.",
                           .fix = "Set dist.use_tp_pp_dp_mapping=false or choose sizes with TP*CP = ETP*EP."});
  }
}

const std::vector<Mesh::Axis>& Mesh::layout_of(MeshDim dim) const { return is_expert_dim(dim) ? expert_ : dense_; }

const Mesh::Axis& Mesh::axis(MeshDim dim) const {
  const auto& layout = layout_of(dim);
  return *std::find_if(layout.begin(), layout.end(), [dim](const Axis& axis) { return axis.dim == dim; });
}

std::int64_t Mesh::size(MeshDim dim) const { return axis(dim).size; }

std::int64_t Mesh::coordinate(std::int64_t rank, MeshDim dim) const { return rank / axis(dim).stride % axis(dim).size; }

std::vector<std::int64_t> Mesh::group(std::int64_t rank, const std::vector<MeshDim>& dims) const {
  PHAROS_CHECK(!dims.empty(), "a group needs a dimension");
  const bool expert = std::any_of(dims.begin(), dims.end(), is_expert_dim);
  std::vector<std::int64_t> members{rank};
  for (const auto& axis : expert ? expert_ : dense_) {
    if (std::find(dims.begin(), dims.end(), axis.dim) == dims.end()) continue;
    std::vector<std::int64_t> wider;
    for (const auto member : members) {
      const auto origin = member - member / axis.stride % axis.size * axis.stride;
      for (std::int64_t i = 0; i < axis.size; ++i) wider.push_back(origin + i * axis.stride);
    }
    members = std::move(wider);
  }
  std::sort(members.begin(), members.end());
  return members;
}

std::vector<std::vector<std::int64_t>> Mesh::groups(const std::vector<MeshDim>& dims) const {
  std::vector<std::vector<std::int64_t>> all;
  for (std::int64_t rank = 0; rank < world_size_; ++rank) {
    auto members = group(rank, dims);
    if (members.front() == rank) all.push_back(std::move(members));
  }
  return all;
}

}  // namespace pharos::comm
