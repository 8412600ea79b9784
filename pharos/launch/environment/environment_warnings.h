// Combinations of variables that do harm, each with its remedy.
#pragma once

#include <string>
#include <vector>

#include "pharos/config/resolve.h"
#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

/// Sentences on the variables of `plan` as they will be, whoever set them.
std::vector<std::string> environment_warnings(const EnvironmentPlan& plan, const config::ResolvedConfig& resolved,
                                              const NodeShape& node);

}  // namespace pharos::launch
