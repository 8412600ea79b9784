// Counters of network devices as the kernel and the driver of the GPUs show them: one reading of all of them.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::profile {

enum class PortKind : std::uint8_t {
  kInfiniband,  ///< class/infiniband: InfiniBand, RoCE and EFA
  kNetwork,     ///< class/net
  kNvlink       ///< all links of one GPU, by NVML
};

struct Port {
  PortKind kind = PortKind::kNetwork;
  std::string device;
  std::string port;  ///< number within an InfiniBand device, else empty

  auto operator<=>(const Port&) const = default;
  /// "mlx5_0/1", "eth0", "gpu3".
  std::string name() const { return port.empty() ? device : device + "/" + port; }
};

/// One counter that is understood.
struct CounterKind {
  std::string_view label;        ///< of bytes: transmit, receive, rdma_read, …; of events: the counter's own name
  std::uint64_t unit_bytes = 0;  ///< what one count stands for; 0: an event, mostly an error
  int width_bits = 64;           ///< 32: may be a counter of 32 bits, or of 64
};

struct CounterValue {
  const CounterKind* kind = nullptr;  ///< lives as long as the process
  std::uint64_t count = 0;            ///< since the device was reset
};

struct PortReading {
  Port port;
  std::vector<CounterValue> values;
};

/// Of one moment, in the order of ports. A device that is not there, a file that cannot be read or holds no number is
/// left out.
using Reading = std::vector<PortReading>;
using ReadCounters = std::function<Reading()>;

/// Reads ROOT/class/infiniband/DEVICE/ports/PORT/{counters,hw_counters} and ROOT/class/net/DEVICE/statistics. The
/// loopback device only counts where there is no other. Counters that Pharos does not know are passed over
/// (docs/cluster/counters.md lists those it knows).
Reading read_counter_tree(const std::filesystem::path& root);

/// Reads the NVLink traffic of all GPUs by NVML (libnvidia-ml.so.1). Null where there is no NVML, no GPU, or none with
/// NVLink; `why_not` says which.
ReadCounters open_nvlink(std::string& why_not);

}  // namespace pharos::profile
