// Which network NCCL would take on this node. It looks for an external plug-in, then for verbs devices, and when
// neither works it takes sockets without a word that a user would see: 10 to 50 times slower on a node built for
// training.
#pragma once

#include <string>
#include <vector>

#include "pharos/launch/doctor/network/devices.h"

namespace pharos::launch {

struct ProviderFacts {
  std::vector<RdmaDevice> devices = {};
  std::vector<Interface> interfaces = {};
  // Environment variables, empty when not set.
  std::string nccl_net = {}, fi_provider = {}, ib_disable = {}, socket_interface = {}, library_path = {};
  std::string nccl_net_plugin = {};
  std::string plugin_name = {};  ///< the first that NCCL tries: of NCCL_NET_PLUGIN, or libnccl-net.so
  bool is_plugin_loaded = false;
  std::string plugin_error = {};  ///< of the loader
  std::string plugin_path = {};
  std::vector<std::string> plugins_elsewhere = {};  ///< files that would be one, outside the search path
  bool is_verbs_loaded = true;                      ///< libibverbs.so.1 can be loaded
  bool has_device_files = true;                     ///< /dev/infiniband/uverbs*
  bool has_gpus = false;
  bool has_gdrcopy = false;      ///< /dev/gdrdrv
  bool has_peer_memory = false;  ///< nvidia_peermem, or a kernel with DMA-BUF (5.12 and newer)
};

/// Names NCCL tries for its plug-in, in order; none when NCCL_NET_PLUGIN is "none". That variable is a path, a file's
/// name
/// ("libnccl-net-ofi.so") or what is between "libnccl-net-" and ".so".
std::vector<std::string> plugin_names(const std::string& nccl_net_plugin);

Findings judge_provider(const ProviderFacts& facts);

/// Whether `interface` is chosen by NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME = `pattern`: prefixes, "=" for whole
/// names,
/// "^" for all but these.
bool matches_interface(const std::string& interface, const std::string& pattern);

}  // namespace pharos::launch
