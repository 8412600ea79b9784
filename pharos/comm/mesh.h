// Rank layout: which coordinates a rank has along each dimension of parallelism, and which ranks form a group.
// Dense and expert parameters are laid out over the same ranks in two ways (Megatron's RankGenerator).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pharos::comm {

/// Dimensions of parallelism. The expert layout has its own tensor (etp), expert (ep) and data (edp) dimensions.
enum class MeshDim : std::uint8_t { kTensor, kContext, kData, kPipeline, kExpertTensor, kExpert, kExpertData };

/// "tp", "cp", "dp", "pp", "etp", "ep", "edp".
const char* mesh_dim_name(MeshDim dim);

/// Parallel sizes as the configuration gives them; `data` and `expert_data` follow from the world size.
struct ParallelSizes {
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  bool tensor_pipeline_data_order = false;  ///< `dist.use_tp_pp_dp_mapping`: pp varies faster than dp
};

/// Layout of `world_size` ranks. Order, fastest first: tp-cp-dp-pp (dense) and etp-ep-edp-pp (expert), or with
/// tensor_pipeline_data_order tp-cp-pp-dp and etp-ep-pp-edp.
class Mesh {
 public:
  /// UserError when world_size is not a multiple of tp*pp*cp or of etp*ep*pp, or when the pipeline groups of the two
  /// layouts differ (bridge-config V1-V3).
  Mesh(std::int64_t world_size, const ParallelSizes& sizes);

  std::int64_t world_size() const { return world_size_; }
  std::int64_t size(MeshDim dim) const;
  /// Coordinate of `rank` along `dim`, from 0.
  std::int64_t coordinate(std::int64_t rank, MeshDim dim) const;
  /// Ranks that share all coordinates of `rank` but those along `dims` (all of one layout), ascending.
  std::vector<std::int64_t> group(std::int64_t rank, const std::vector<MeshDim>& dims) const;
  /// Every group along `dims`, ordered by first rank.
  std::vector<std::vector<std::int64_t>> groups(const std::vector<MeshDim>& dims) const;

 private:
  struct Axis {
    MeshDim dim;
    std::int64_t size;
    std::int64_t stride;
  };
  const std::vector<Axis>& layout_of(MeshDim dim) const;
  const Axis& axis(MeshDim dim) const;

  std::int64_t world_size_;
  std::vector<Axis> dense_;
  std::vector<Axis> expert_;
};

}  // namespace pharos::comm
