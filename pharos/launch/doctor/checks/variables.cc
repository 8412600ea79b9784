// Environment variables that were set for a reason once and do harm now.
#include <algorithm>
#include <optional>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/network/provider.h"

namespace pharos::launch {
namespace {

struct Rule {
  const char* name;
  const char* value;  ///< that does harm; "*": any that is not empty
  Verdict verdict;
  const char* reason;
};

constexpr Rule kRules[] = {
    {"CUDA_LAUNCH_BLOCKING", "1", Verdict::kWarning, "Every kernel is waited for: steps are several times slower."},
    {"NCCL_DEBUG", "TRACE", Verdict::kWarning, "Every call is logged, which slows it down; WARN is enough."},
    {"NCCL_P2P_DISABLE", "1", Verdict::kWarning, "GPUs of a node do not use NVLink or PCIe between them."},
    {"NCCL_SHM_DISABLE", "1", Verdict::kWarning, "GPUs of a node talk over the network."},
    {"NCCL_NET_GDR_LEVEL", "LOC", Verdict::kWarning, "The network does not reach GPU memory; every byte is copied."},
    {"NCCL_NET_GDR_LEVEL", "0", Verdict::kWarning, "The network does not reach GPU memory; every byte is copied."},
    {"NCCL_ALGO", "*", Verdict::kNote, "NCCL does not choose the best algorithm for each size."},
    {"NCCL_PROTO", "*", Verdict::kNote, "NCCL does not choose the best protocol for each size."},
    {"FI_EFA_USE_DEVICE_RDMA", "0", Verdict::kWarning, "EFA does not reach GPU memory; every byte is copied."},
    {"FI_LOG_LEVEL", "debug", Verdict::kWarning, "libfabric logs every call."},
    {"MALLOC_CHECK_", "*", Verdict::kWarning, "Every allocation is checked."},
    {"MALLOC_PERTURB_", "*", Verdict::kWarning, "Every allocation is overwritten."},
    {"LD_PRELOAD", "*", Verdict::kNote, "A library is put before all others in every rank."},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", Verdict::kWarning, "Every tensor is allocated by the driver, which waits."},
};

Finding set_badly(const std::string& name, const std::string& value, Verdict verdict, const std::string& remedy) {
  return {.check = "variables", .subject = name, .value = value, .verdict = verdict, .remedy = remedy};
}

std::optional<Finding> judge_threads(const Node& node) {
  const std::string text = node.variable("OMP_NUM_THREADS");
  const auto threads = number_of(text);
  const std::int64_t num_allowed =
      count_of_list(field_of(node.read("/proc/self/status").value_or(""), "Cpus_allowed_list"));
  if (text.empty()) return std::nullopt;
  if (!threads || *threads < 1)
    return set_badly("OMP_NUM_THREADS", text, Verdict::kFailure, "It must be a whole number of 1 or more.");
  if (num_allowed == 0 || *threads <= num_allowed) return std::nullopt;
  return set_badly("OMP_NUM_THREADS", text + " on " + counted(num_allowed, "core"), Verdict::kWarning,
                   "Threads that wait for each other on shared cores are slow beyond measure: at most one per core.");
}

std::optional<Finding> judge_master(const Node& node) {
  const std::string master = node.variable("MASTER_ADDR");
  const auto num_nodes = number_of(node.variable("SLURM_NNODES"));
  const bool is_local = master == "localhost" || master.starts_with("127.") || master == "::1";
  if (!is_local || !num_nodes || *num_nodes < 2) return std::nullopt;
  return set_badly("MASTER_ADDR", master + ", but the job has " + counted(*num_nodes, "node"), Verdict::kFailure,
                   "Set it to the first node: scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -1");
}

std::optional<Finding> judge_gloo_interface(const Node& node) {
  const std::string chosen = node.variable("GLOO_SOCKET_IFNAME");
  if (chosen.empty() || node.exists("/sys/class/net/" + chosen.substr(0, chosen.find(',')))) return std::nullopt;
  std::vector<std::string> up;
  for (const Interface& interface : list_interfaces(node)) {
    if (interface.is_up) up.push_back(interface.name);
  }
  return set_badly("GLOO_SOCKET_IFNAME", chosen + ", which is not there", Verdict::kFailure,
                   up.empty() ? "unset GLOO_SOCKET_IFNAME" : "Up are: " + base::join(up, ", ") + ".");
}

std::optional<Finding> judge_connections(const Node& node) {
  const std::string text = node.variable("CUDA_DEVICE_MAX_CONNECTIONS");
  const auto number = number_of(text);
  if (text.empty() || (number && *number >= 1 && *number <= 32)) return std::nullopt;
  return set_badly("CUDA_DEVICE_MAX_CONNECTIONS", text, Verdict::kFailure, "It must be from 1 to 32.");
}

std::optional<Finding> judge_visible_devices(const Node& node) {
  const auto text = node.environment->get("CUDA_VISIBLE_DEVICES");
  if (!text || !(text->empty() || *text == "-1") || !node.exists("/dev/nvidiactl")) return std::nullopt;
  return set_badly("CUDA_VISIBLE_DEVICES", "hides all GPUs", node.num_gpus ? Verdict::kFailure : Verdict::kWarning,
                   "unset CUDA_VISIBLE_DEVICES");
}

std::optional<Finding> judge_temporary_folder(const Node& node) {
  const std::string folder = node.variable("TMPDIR");
  if (folder.empty() || std::filesystem::is_directory(folder)) return std::nullopt;
  return set_badly("TMPDIR", folder + ", which is no folder", Verdict::kFailure, "Make it, or unset TMPDIR.");
}

}  // namespace

Findings check_variables(const Node& node) {
  Findings findings;
  for (const Rule& rule : kRules) {
    const std::string value = node.variable(rule.name);
    if (value.empty() || (std::string_view(rule.value) != "*" && value != rule.value)) continue;
    findings.push_back(set_badly(rule.name, value, rule.verdict, std::string(rule.reason) + " unset " + rule.name));
  }
  for (const auto judge : {judge_threads, judge_master, judge_gloo_interface, judge_connections, judge_visible_devices,
                           judge_temporary_folder}) {
    if (auto finding = judge(node)) findings.push_back(std::move(*finding));
  }
  if (findings.empty()) findings.push_back({.check = "variables", .subject = {}, .value = "none does harm"});
  return findings;
}

}  // namespace pharos::launch
