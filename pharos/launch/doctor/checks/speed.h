// Verdicts about measured speeds.
#pragma once

#include <string>
#include <vector>

#include "pharos/launch/doctor/node.h"

namespace pharos::launch {

/// One line for each device. `check`: "gemm" or "bandwidth".
Findings judge_measurements(const std::string& check, const std::string& unit,
                            const std::vector<Measurement>& measurements);

}  // namespace pharos::launch
