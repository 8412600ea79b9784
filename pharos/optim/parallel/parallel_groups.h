// The groups that an optimizer step talks to.
#pragma once

#include <map>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/comm/mesh.h"
#include "pharos/comm/world.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Null: this rank alone.
struct ParallelGroups {
  comm::Group* data = nullptr;          ///< replicas of the model: gradients are reduced, states are sharded over them
  comm::Group* tensor = nullptr;        ///< ranks between which layers are split
  comm::Group* pipeline = nullptr;      ///< stages
  comm::Group* tied = nullptr;          ///< the two pipeline ranks that hold tied weights, see Parameter::tie
  comm::Group* expert_data = nullptr;   ///< replicas of the experts ("edp")
  comm::Group* expert_model = nullptr;  ///< ranks between which experts are split: ETP × EP ("etp-ep")
  /// Neighbouring tensor-parallel ranks that share values whose gradients are summed, by their number.
  std::map<int, comm::Group*> sharing_tensor;
};

/// Pipeline coordinates of the ranks that hold the two ends of the model.
struct PipelineEnds {
  std::int64_t embedding = 0;
  std::int64_t output = 0;
};

/// The groups of this rank along data × context ("dp", with context parallelism "dp-cp"), tensor ("tp") and pipeline
/// ("pp") dimensions that have several ranks, "tp-replicas-N" where pieces of `parameters` are held N times, "tied" of
/// the two `ends` of the pipeline where one of `parameters` has a Parameter::tie, and with experts "edp" and "etp-ep",
/// which lie within a stage. Every rank must call it.
ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh,
                               const std::vector<tensor::Parameter*>& parameters, const PipelineEnds& ends = {});

}  // namespace pharos::optim
