// The same verdict on every rank: what one rank finds wrong, all of them leave with.
#pragma once

#include <functional>
#include <string>

#include "pharos/comm/world.h"
#include "pharos/config/resolve.h"

namespace pharos::train {

/// Calls `work` on every rank and waits for all of them. Where it threw on any rank, every rank throws: that one what
/// it threw, the others an error of the same kind (UserError or TrainingError) that names the rank and its reason.
/// `key`: the same on all ranks, used once in the life of the job.
void together(comm::World& world, const std::string& key, const std::function<void()>& work);

/// UserError on every rank when the ranks do not have the same configuration, naming rank, fields and both values.
void compare_configurations(comm::World& world, const config::ResolvedConfig& resolved);

}  // namespace pharos::train
