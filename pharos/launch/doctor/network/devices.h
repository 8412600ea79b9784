// Network interfaces and RDMA devices as the kernel lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/launch/doctor/node.h"

namespace pharos::launch {

struct Interface {
  std::string name;
  bool is_up = false;
  bool is_physical = false;     ///< a device stands behind it
  std::int64_t speed_mbps = 0;  ///< Mb/s; 0: not told
  std::int64_t mtu = 0;
};

struct RdmaPort {
  std::string number;
  std::string state = {};       ///< "ACTIVE", "DOWN", …
  std::string rate = {};        ///< "400 Gb/sec (4X NDR)"
  std::string link_layer = {};  ///< "InfiniBand", "Ethernet"; EFA: "Unspecified"
};

struct RdmaDevice {
  std::string name;
  bool is_efa = false;
  std::vector<RdmaPort> ports = {};
  bool has_active_port() const;
};

/// Of /sys/class/net, without the loopback interface.
std::vector<Interface> list_interfaces(const Node& node);
/// Of /sys/class/infiniband.
std::vector<RdmaDevice> list_rdma_devices(const Node& node);

Findings judge_interfaces(const std::vector<Interface>& interfaces);
Findings judge_rdma_devices(const std::vector<RdmaDevice>& devices);

}  // namespace pharos::launch
