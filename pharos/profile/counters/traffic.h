// What went over the ports of a node between two readings of their counters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pharos/profile/counters/counter_tree.h"

namespace pharos::profile {

struct Growth {
  std::uint64_t count = 0;
  bool is_reset = false;  ///< the counter began again at zero in between: what it counted before that is lost
};

/// How far a counter got from `previous` to `current`. A counter that went down has wrapped if it was in the upper half
/// of its range and is in the lower one; else it was reset. width_bits: as CounterKind's; one of 32 bits that was ever
/// above 2^32 has 64.
Growth growth_of(std::uint64_t previous, std::uint64_t current, int width_bits);

/// Of one port.
struct Traffic {
  std::map<std::string_view, std::uint64_t> bytes;   ///< by CounterKind::label
  std::map<std::string_view, std::uint64_t> events;  ///< those that happened
  std::uint64_t num_resets = 0;

  void operator+=(const Traffic& other);
};
using PortTraffic = std::map<Port, Traffic>;

/// Adds `more` to `sum`, port by port.
void add(PortTraffic& sum, const PortTraffic& more);

/// Follows counters over readings.
class TrafficMeter {
 public:
  /// Traffic since the last reading that had the port. A counter that is new counts from here on; one that is missing
  /// is waited for.
  PortTraffic advance(const Reading& reading);

 private:
  std::map<std::pair<Port, const CounterKind*>, std::uint64_t> last_;
};

}  // namespace pharos::profile
