// What the driver says of the GPUs of this node, through its library NVML, which is loaded at run time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pharos::launch {

/// Fields stay empty where a device or an older driver does not tell.
struct GpuFacts {
  std::string name = {}, bus_id = {};
  std::optional<std::int64_t> memory_bytes = {}, free_bytes = {};
  std::optional<std::int64_t> temperature_celsius = {};
  std::optional<std::int64_t> clock_mhz = {}, most_clock_mhz = {};  ///< of the multiprocessors
  std::uint64_t throttle_reasons = 0;                               ///< bits of nvmlClocksThrottleReasons
  std::optional<std::int64_t> uncorrected_errors = {};     ///< of ECC since the driver was loaded; empty: ECC is off
  bool has_pending_rows = false, has_failed_rows = false;  ///< remapping of broken memory rows
  std::optional<std::int64_t> link_width = {}, most_link_width = {};  ///< lanes of PCIe
  std::vector<std::int64_t> processes = {};                           ///< that compute on it
};

struct DriverFacts {
  std::string driver_version;
  std::string cuda_version;  ///< the newest that the driver can run, "12.8"
  std::vector<GpuFacts> devices;
};

struct NvmlResult {
  bool is_loaded = false;  ///< the library was found; otherwise there is no driver
  std::string error;       ///< of the loader or of NVML; empty: `facts` are whole
  DriverFacts facts = {};
};

/// `library`: a name the loader looks up, or a path. Hangs where the driver does.
NvmlResult read_nvml(const std::string& library);

/// "hardware slowdown (temperature)", … of those bits that take speed away.
std::vector<std::string> describe_throttling(std::uint64_t reasons);

}  // namespace pharos::launch
