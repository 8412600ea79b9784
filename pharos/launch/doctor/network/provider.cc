#include "pharos/launch/doctor/network/provider.h"

#include <algorithm>
#include <sstream>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/library.h"

namespace pharos::launch {
namespace {

/// Where the installers of EFA and of container images put the plug-in.
constexpr const char* kPluginFolders[] = {"/opt/amazon/ofi-nccl/lib",   "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
                                          "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/aws-ofi-nccl/lib",
                                          "/opt/aws-ofi-nccl/lib",      "/opt/aws-ofi-nccl/install/lib"};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

Finding outcome(const std::string& network, const std::string& reason, Verdict verdict = Verdict::kOk,
                const std::string& remedy = {}) {
  return {.check = "provider",
          .subject = {},
          .value = "NCCL would take " + network + (reason.empty() ? "" : ": " + reason),
          .verdict = verdict,
          .remedy = remedy,
          .data = {{"network", network}}};
}

bool has(const std::vector<std::string>& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

std::string plugin_remedy(const ProviderFacts& facts) {
  const bool is_named = !facts.nccl_net_plugin.empty();
  if (facts.plugins_elsewhere.empty()) {
    return "Install aws-ofi-nccl and put its folder into LD_LIBRARY_PATH (now \"" + facts.library_path + "\")" +
           (is_named ? "." : ", or name the file with NCCL_NET_PLUGIN.");
  }
  const auto tried = plugin_names(facts.nccl_net_plugin);
  const auto base_name = [](const std::string& file) { return file.substr(file.rfind('/') + 1); };
  const auto is_tried = [&](const std::string& file) { return has(tried, file) || has(tried, base_name(file)); };
  const auto wanted = std::find_if(facts.plugins_elsewhere.begin(), facts.plugins_elsewhere.end(), is_tried);
  const std::string& file = wanted == facts.plugins_elsewhere.end() ? facts.plugins_elsewhere.front() : *wanted;
  const std::string folder = file.substr(0, file.rfind('/'));
  const bool is_searched = has(split(facts.library_path, ':'), folder);
  if (has(tried, file) || (is_searched && is_tried(file))) {
    return file + " is there and cannot be loaded: `ldd " + file +
           "` names the library that it lacks. EFA's libfabric lies in /opt/amazon/efa/lib, which belongs into "
           "LD_LIBRARY_PATH.";
  }
  if (is_searched) return "It lies in " + file + ": export NCCL_NET_PLUGIN=" + base_name(file) + ".";
  return "It lies in " + file + ": export LD_LIBRARY_PATH=" + folder + ":$LD_LIBRARY_PATH" +
         (is_named ? "" : ", or NCCL_NET_PLUGIN=" + file) + ". --profile efa sets what pharos launch sets.";
}

Finding judge_efa(const ProviderFacts& facts) {
  const std::string net = lower(facts.nccl_net);
  if (net == "socket") {
    return outcome("sockets", "NCCL_NET=" + facts.nccl_net + " although there is EFA", Verdict::kFailure,
                   "unset NCCL_NET");
  }
  if (net == "ib") {
    return outcome("nothing", "NCCL_NET=IB, but EFA devices have no verbs transport in NCCL", Verdict::kFailure,
                   "unset NCCL_NET: EFA is reached through the plug-in of aws-ofi-nccl.");
  }
  if (!facts.has_device_files) {
    return outcome("sockets", "EFA devices are there, but no /dev/infiniband/uverbs*", Verdict::kFailure,
                   "Start the container with --device=/dev/infiniband, or mount that folder.");
  }
  if (!facts.is_plugin_loaded) {
    const std::string why = facts.plugin_name.empty()
                                ? "NCCL_NET_PLUGIN=none"
                                : "the plug-in " + facts.plugin_name + " cannot be loaded (" + facts.plugin_error + ")";
    return outcome("sockets", "EFA devices are there, but " + why, Verdict::kFailure,
                   facts.plugin_name.empty() ? "unset NCCL_NET_PLUGIN" : plugin_remedy(facts));
  }
  const auto providers = split(lower(facts.fi_provider), ',');
  const bool is_excluded =
      facts.fi_provider.starts_with('^')
          ? facts.fi_provider.find("efa") != std::string::npos
          : !providers.empty() && std::find(providers.begin(), providers.end(), "efa") == providers.end();
  if (is_excluded) {
    return outcome("libfabric without EFA", "FI_PROVIDER=" + facts.fi_provider, Verdict::kFailure,
                   "export FI_PROVIDER=efa");
  }
  const bool any_active = std::any_of(facts.devices.begin(), facts.devices.end(),
                                      [](const RdmaDevice& one) { return one.is_efa && one.has_active_port(); });
  if (!any_active) {
    return outcome("sockets", "no EFA device has an active port", Verdict::kFailure,
                   "See the network lines; stop and start the instance.");
  }
  return outcome("libfabric with EFA", facts.plugin_path);
}

Finding judge_verbs(const ProviderFacts& facts) {
  const std::string net = lower(facts.nccl_net);
  if (net == "socket") {
    return outcome("sockets", "NCCL_NET=" + facts.nccl_net + " although there are InfiniBand devices",
                   Verdict::kFailure, "unset NCCL_NET");
  }
  if (!facts.ib_disable.empty() && facts.ib_disable != "0") {
    return outcome("sockets", "NCCL_IB_DISABLE=" + facts.ib_disable + " although there are InfiniBand devices",
                   Verdict::kFailure, "unset NCCL_IB_DISABLE");
  }
  if (!facts.has_device_files) {
    return outcome("sockets", "InfiniBand devices are there, but no /dev/infiniband/uverbs*", Verdict::kFailure,
                   "Start the container with --device=/dev/infiniband, or mount that folder.");
  }
  if (!facts.is_verbs_loaded) {
    return outcome("sockets", "libibverbs.so.1 cannot be loaded", Verdict::kFailure,
                   "Install libibverbs1 and the driver of the device (ibverbs-providers, rdma-core).");
  }
  std::vector<std::string> down;
  for (const RdmaDevice& device : facts.devices) {
    if (!device.has_active_port()) down.push_back(device.name);
  }
  if (down.size() == facts.devices.size()) {
    return outcome("sockets", "no InfiniBand port is active (" + base::join(down, ", ") + ")", Verdict::kFailure,
                   "Check cables, switch and subnet manager (ibstat).");
  }
  if (!down.empty()) {
    return outcome("InfiniBand", "without " + base::join(down, ", ") + ", whose ports are not active",
                   Verdict::kWarning,
                   "Check cables and switch ports (ibstat): this node has less bandwidth than the others.");
  }
  return outcome("InfiniBand", counted(static_cast<std::int64_t>(facts.devices.size()), "device"));
}

Findings judge_direct_memory(const ProviderFacts& facts, bool is_efa) {
  Findings findings;
  if (facts.devices.empty() || !facts.has_gpus) return findings;
  if (!facts.has_gdrcopy) {
    findings.push_back({.check = "provider",
                        .subject = "gdrcopy",
                        .value = "/dev/gdrdrv is missing",
                        .verdict = is_efa ? Verdict::kWarning : Verdict::kNote,
                        .remedy = "Small messages are slower, and GIN does not start: load the module gdrdrv on the "
                                  "host and pass /dev/gdrdrv into the container."});
  }
  if (!facts.has_peer_memory) {
    findings.push_back({.check = "provider",
                        .subject = "GPU memory",
                        .value = "the network cannot reach GPU memory: neither nvidia_peermem nor DMA-BUF",
                        .verdict = Verdict::kWarning,
                        .remedy = "modprobe nvidia_peermem on the host: otherwise every byte goes through the CPU."});
  }
  return findings;
}

Findings judge_socket_interface(const ProviderFacts& facts) {
  if (facts.socket_interface.empty()) return {};
  Finding finding{.check = "provider",
                  .subject = "sockets",
                  .value = "NCCL_SOCKET_IFNAME=" + facts.socket_interface + " names no interface that is up",
                  .verdict = Verdict::kFailure};
  std::vector<std::string> up;
  for (const Interface& interface : facts.interfaces) {
    if (!interface.is_up) continue;
    if (matches_interface(interface.name, facts.socket_interface)) return {};
    up.push_back(interface.name);
  }
  if (matches_interface("lo", facts.socket_interface)) {
    finding.value = "NCCL_SOCKET_IFNAME=" + facts.socket_interface + " is the loopback";
    finding.verdict = Verdict::kNote;
    finding.remedy = "Fine on one node; others cannot reach it.";
    return {finding};
  }
  finding.remedy = up.empty() ? "unset NCCL_SOCKET_IFNAME" : "Up are: " + base::join(up, ", ") + ".";
  return {finding};
}

bool starts_any(const std::vector<std::string>& names, const char* prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

bool kernel_has_dma_buf(const Node& node) {
  std::istringstream release(node.read("/proc/sys/kernel/osrelease").value_or(""));
  int major = 0, minor = 0;
  char point = 0;
  release >> major >> point >> minor;
  return major > 5 || (major == 5 && minor >= 12);
}

}  // namespace

std::vector<std::string> plugin_names(const std::string& nccl_net_plugin) {
  if (nccl_net_plugin == "none") return {};
  if (nccl_net_plugin.empty()) return {"libnccl-net.so"};
  if (nccl_net_plugin.find('/') != std::string::npos) return {nccl_net_plugin};
  if (nccl_net_plugin.ends_with(".so")) return {nccl_net_plugin, "libnccl-net.so"};
  return {"libnccl-net-" + nccl_net_plugin + ".so", nccl_net_plugin, "libnccl-net.so"};
}

bool matches_interface(const std::string& interface, const std::string& pattern) {
  const bool is_exclusion = pattern.starts_with('^');
  std::string list = pattern.substr(is_exclusion ? 1 : 0);
  const bool is_whole = list.starts_with('=');
  if (is_whole) list.erase(0, 1);
  bool is_listed = false;
  for (std::string name : split(list, ',')) {
    name = name.substr(0, name.find(':'));
    is_listed = is_listed || (is_whole ? interface == name : interface.starts_with(name));
  }
  return is_listed != is_exclusion;
}

Findings judge_provider(const ProviderFacts& facts) {
  const bool is_efa =
      std::any_of(facts.devices.begin(), facts.devices.end(), [](const RdmaDevice& one) { return one.is_efa; });
  Findings findings;
  if (is_efa) {
    findings.push_back(judge_efa(facts));
  } else if (!facts.devices.empty()) {
    findings.push_back(judge_verbs(facts));
  } else if (lower(facts.nccl_net) == "ib") {
    findings.push_back(outcome("nothing", "NCCL_NET=IB, but there is no InfiniBand device", Verdict::kFailure,
                               "unset NCCL_NET, or load the driver of the device."));
  } else if (facts.is_plugin_loaded) {
    findings.push_back(outcome("the plug-in", facts.plugin_path, Verdict::kNote));
  } else {
    findings.push_back(outcome("sockets", "there is no RDMA device", Verdict::kNote));
  }
  for (Finding& finding : judge_direct_memory(facts, is_efa)) findings.push_back(std::move(finding));
  for (Finding& finding : judge_socket_interface(facts)) findings.push_back(std::move(finding));
  return findings;
}

Findings check_provider(const Node& node) {
  ProviderFacts facts;
  facts.devices = list_rdma_devices(node);
  facts.interfaces = list_interfaces(node);
  facts.nccl_net = node.variable("NCCL_NET");
  facts.fi_provider = node.variable("FI_PROVIDER");
  facts.ib_disable = node.variable("NCCL_IB_DISABLE");
  facts.socket_interface = node.variable("NCCL_SOCKET_IFNAME");
  facts.library_path = node.variable("LD_LIBRARY_PATH");
  facts.nccl_net_plugin = node.variable("NCCL_NET_PLUGIN");
  if (const auto names = plugin_names(facts.nccl_net_plugin); !names.empty()) {
    const LoadedLibrary plugin = load_library(names);
    facts.plugin_name = names.front();
    facts.is_plugin_loaded = plugin.is_loaded();
    facts.plugin_error = plugin.error;
    facts.plugin_path = plugin.path;
  }
  for (const char* folder : kPluginFolders) {
    for (const std::string& name : node.list(folder)) {
      if (name.starts_with("libnccl-net") && name.ends_with(".so"))
        facts.plugins_elsewhere.push_back(std::string(folder) + "/" + name);
    }
  }
  facts.is_verbs_loaded = facts.devices.empty() || load_library({"libibverbs.so.1"}).is_loaded();
  facts.has_device_files = starts_any(node.list("/dev/infiniband"), "uverbs");
  facts.has_gpus = node.exists("/dev/nvidiactl");
  facts.has_gdrcopy = node.exists("/dev/gdrdrv");
  facts.has_peer_memory = node.exists("/sys/module/nvidia_peermem") || kernel_has_dma_buf(node);
  return judge_provider(facts);
}

}  // namespace pharos::launch
