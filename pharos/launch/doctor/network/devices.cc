#include "pharos/launch/doctor/network/devices.h"

#include <algorithm>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"

namespace pharos::launch {
namespace {

const std::string kInterfaces = "/sys/class/net";
const std::string kRdmaDevices = "/sys/class/infiniband";
constexpr const char* kAmazonVendor = "0x1d0f";

std::string speed_text(std::int64_t speed_mbps) {
  if (speed_mbps <= 0) return "speed unknown";
  if (speed_mbps < 1000) return std::to_string(speed_mbps) + " Mb/s";
  return fixed(static_cast<double>(speed_mbps) * 1e-3, speed_mbps % 1000 == 0 ? 0 : 1) + " Gb/s";
}

/// "4: ACTIVE" → "ACTIVE"
std::string word_of_state(const std::string& text) {
  const auto colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

RdmaDevice read_device(const Node& node, const std::string& name) {
  const std::string folder = kRdmaDevices + "/" + name;
  RdmaDevice device{.name = name};
  const auto vendor = node.read(folder + "/device/vendor");
  // A container may see the device but not its bus.
  device.is_efa = vendor ? *vendor == kAmazonVendor : name.starts_with("rdmap") || name.starts_with("efa");
  for (const std::string& number : node.list(folder + "/ports")) {
    const std::string port = folder + "/ports/" + number;
    device.ports.push_back({.number = number,
                            .state = word_of_state(node.read(port + "/state").value_or("unknown")),
                            .rate = node.read(port + "/rate").value_or(""),
                            .link_layer = node.read(port + "/link_layer").value_or("")});
  }
  return device;
}

Finding judge_port(const RdmaDevice& device, const RdmaPort& port) {
  const std::string kind = device.is_efa ? "EFA" : port.link_layer == "Ethernet" ? "RoCE" : "InfiniBand";
  Finding finding{.check = "network", .subject = device.name + ":" + port.number, .value = kind + ", " + port.state};
  if (!port.rate.empty()) finding.value += ", " + port.rate;
  finding.data = {{"kind", kind}, {"state", port.state}, {"rate", port.rate}};
  if (port.state != "ACTIVE") {
    finding.verdict = Verdict::kWarning;
    finding.remedy = port.state == "INIT" ? "The port waits for the subnet manager (opensm): start it."
                                          : "Check cable and switch port (ibstat " + device.name + ").";
  }
  return finding;
}

/// Devices that are alike share a line: nodes have up to 32 of them.
void merge_equal(Findings& findings) {
  Findings merged;
  for (Finding& finding : findings) {
    const auto same = std::find_if(merged.begin(), merged.end(), [&](const Finding& other) {
      return other.value == finding.value && other.remedy == finding.remedy;
    });
    if (same == merged.end() || finding.verdict >= Verdict::kWarning) {
      finding.data["devices"] = {finding.subject};
      merged.push_back(std::move(finding));
    } else {
      same->data["devices"].push_back(finding.subject);
    }
  }
  for (Finding& finding : merged) {
    const std::size_t count = finding.data["devices"].size();
    if (count == 1) continue;
    finding.subject += " …";
    finding.value = std::to_string(count) + " × " + finding.value;
  }
  findings = std::move(merged);
}

}  // namespace

bool RdmaDevice::has_active_port() const {
  return std::any_of(ports.begin(), ports.end(), [](const RdmaPort& port) { return port.state == "ACTIVE"; });
}

std::vector<Interface> list_interfaces(const Node& node) {
  std::vector<Interface> interfaces;
  for (const std::string& name : node.list(kInterfaces)) {
    const std::string folder = kInterfaces + "/" + name;
    if (name == "lo" || !node.exists(folder + "/operstate")) continue;
    const std::string state = node.read(folder + "/operstate").value_or("");
    // Tunnels and some virtual interfaces do not know their state; their carrier is what counts.
    const bool is_up = state == "up" || (state == "unknown" && node.read_number(folder + "/carrier").value_or(0) == 1);
    interfaces.push_back({.name = name,
                          .is_up = is_up,
                          .is_physical = node.exists(folder + "/device"),
                          .speed_mbps = std::max<std::int64_t>(0, node.read_number(folder + "/speed").value_or(0)),
                          .mtu = node.read_number(folder + "/mtu").value_or(0)});
  }
  return interfaces;
}

std::vector<RdmaDevice> list_rdma_devices(const Node& node) {
  std::vector<RdmaDevice> devices;
  for (const std::string& name : node.list(kRdmaDevices)) devices.push_back(read_device(node, name));
  return devices;
}

Findings judge_interfaces(const std::vector<Interface>& interfaces) {
  constexpr std::int64_t kFastMbps = 25'000, kJumboMtu = 8'000;
  Findings findings;
  std::size_t num_idle_virtual = 0;
  for (const Interface& interface : interfaces) {
    if (!interface.is_up && !interface.is_physical) {
      ++num_idle_virtual;
      continue;
    }
    Finding finding{.check = "network", .subject = interface.name, .value = interface.is_up ? "up" : "down"};
    if (interface.is_up)
      finding.value += ", " + speed_text(interface.speed_mbps) + ", MTU " + std::to_string(interface.mtu);
    finding.data = {{"up", interface.is_up}, {"speed_mbps", interface.speed_mbps}, {"mtu", interface.mtu}};
    if (!interface.is_up) finding.verdict = Verdict::kNote;
    if (interface.is_up && interface.is_physical && interface.speed_mbps >= kFastMbps && interface.mtu < kJumboMtu) {
      finding.verdict = Verdict::kNote;
      finding.remedy = "Sockets are faster with an MTU of 9000, where switches allow it.";
    }
    findings.push_back(finding);
  }
  const bool any_up = std::any_of(interfaces.begin(), interfaces.end(), [](const Interface& one) { return one.is_up; });
  if (!any_up) {
    findings.push_back({.check = "network",
                        .subject = {},
                        .value = "no interface but the loopback is up",
                        .verdict = Verdict::kNote,
                        .remedy = "Fine for one node; several nodes cannot meet without one."});
  } else if (num_idle_virtual > 0) {
    findings.back().data["idle_virtual_interfaces"] = num_idle_virtual;
  }
  return findings;
}

Findings judge_rdma_devices(const std::vector<RdmaDevice>& devices) {
  Findings findings;
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) findings.push_back(judge_port(device, port));
  }
  merge_equal(findings);
  return findings;
}

Findings check_network(const Node& node) {
  Findings findings = judge_interfaces(list_interfaces(node));
  for (Finding& finding : judge_rdma_devices(list_rdma_devices(node))) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace pharos::launch
