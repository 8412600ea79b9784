// What a network profile sets before recipe and user are asked.
#pragma once

#include <string>
#include <vector>

#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

/// Folder of libfabric as Amazon's EFA installer lays it out; a search path without it finds another libfabric or none.
inline constexpr const char* kEfaLibraryFolder = "/opt/amazon/efa/lib";

/// Variables of `profile` in the order to set them. `uses_gpus` false: only those a CPU rank reads.
std::vector<PlannedVariable> profile_variables(NetworkProfile profile, bool uses_gpus);

}  // namespace pharos::launch
