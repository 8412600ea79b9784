// The groups in which the ranks of a mesh compute a stage together.
#pragma once

#include "pharos/comm/mesh.h"
#include "pharos/comm/world.h"
#include "pharos/model/transformer.h"

namespace pharos::model {

/// Along every dimension of `mesh` (that of `world`) that has several ranks; those of experts if the model has some, on
/// every rank, also where a stage has none. Every rank must call it.
ParallelGroups parallel_groups(comm::World& world, const comm::Mesh& mesh, bool has_experts);

}  // namespace pharos::model
