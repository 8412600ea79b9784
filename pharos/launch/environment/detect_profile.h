// Which network profile the devices of this machine ask for.
#pragma once

#include <filesystem>
#include <string>

#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

struct DetectedProfile {
  NetworkProfile profile = NetworkProfile::kTcp;
  std::string evidence;  ///< "16 EFA devices (rdmap0s6, …) in /sys/class/infiniband"
};

/// Looks at the names and drivers in `sysfs`/class/infiniband: rdmap*, efa* or driver efa → efa; mlx5* or driver
/// mlx5_core → ib; else tcp. A machine with both is one with EFA.
DetectedProfile detect_network_profile(const std::filesystem::path& sysfs = "/sys");

}  // namespace pharos::launch
