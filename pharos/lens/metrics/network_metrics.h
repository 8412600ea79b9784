// Metrics of the network devices of a node: megatron.network.bytes, .bytes_per_second and .events.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "pharos/lens/metrics/meter.h"

namespace pharos::lens {

/// What one counter of a port counted in an interval.
struct NetworkPoint {
  std::string_view device;  ///< "rdmap0s6", "mlx5_0", "eth0", "gpu0"
  std::string_view port;    ///< "1"; empty where a device has but one
  std::string_view what;    ///< of bytes: "transmit", "receive", …; of events: the counter's own name
  std::uint64_t count = 0;
  bool is_bytes = true;
};

/// Adds what was counted in `seconds` (above 0), with the attributes network.device, network.port (if there is one) and
/// network.direction, of events network.event. Any thread. InternalError as Meter::create_counter().
void record_network_metrics(Meter& meter, std::span<const NetworkPoint> points, double seconds);

}  // namespace pharos::lens
