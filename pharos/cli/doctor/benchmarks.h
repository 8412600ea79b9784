// The measurements of `pharos doctor` that need torch. They use the device, so they run in child processes
// (launch/doctor/bounded.h): this process stays able to make more of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/launch/doctor/node.h"

namespace pharos::cli {

/// "cuda" where libtorch sees a CUDA device with the number `local_rank`, else "cpu".
std::string find_device(std::int64_t local_rank);

/// `device`: "cpu", "cuda". `local_rank`: only the device of this number; nullopt: all devices.
std::vector<launch::Measurement> measure_gemm(const std::string& device, std::optional<std::int64_t> local_rank);
std::vector<launch::Measurement> measure_bandwidth(const std::string& device, std::optional<std::int64_t> local_rank);

/// Version of the libtorch this program was built with, for example "2.13.0".
std::string libtorch_version();

}  // namespace pharos::cli
