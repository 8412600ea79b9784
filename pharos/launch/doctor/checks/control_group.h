// What the control group (a container, a job) of this process leaves it.
#pragma once

#include <cstdint>
#include <optional>

#include "pharos/launch/doctor/node.h"

namespace pharos::launch {

/// Processors whose time it gives; 0 where there is no limit.
double control_group_cpus(const Node& node);
/// Bytes of memory it may have; nullopt where there is no limit.
std::optional<std::int64_t> control_group_memory_bytes(const Node& node);

}  // namespace pharos::launch
