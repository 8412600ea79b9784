// Tensors on their way between stages that lie in a pipeline rank's memory beside what its stages keep.
#pragma once

#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::plan {

/// [position] -> boundary tensors (outputs and inputs of stages) that are alive on `rank` when its action there has
/// ended:
///   - its own output, and earlier ones from which nothing shows yet that they have been taken: the other rank has not
///     sent anything it made after that;
///   - what comes in: the executor posts receives for the next two actions, in the sender's order;
///   - what waits for another stage of the same rank.
/// Inputs that an action has taken are not among them: a forward's is part of what its stage keeps.
std::vector<int> boundary_tensors(const pipeline::Schedule& schedule, int rank);

}  // namespace pharos::plan
