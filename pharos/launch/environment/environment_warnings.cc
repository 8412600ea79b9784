#include "pharos/launch/environment/environment_warnings.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "pharos/launch/environment/profile_variables.h"
#include "pharos/launch/environment/recipe_variables.h"

namespace pharos::launch {
namespace {

std::optional<std::int64_t> whole_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Collects sentences of the form "NAME=value (origin): harm; remedy."
class Warner {
 public:
  explicit Warner(const EnvironmentPlan& plan) : plan_(plan) {}

  const PlannedVariable* find(const std::string& name) const {
    const auto found = std::find_if(plan_.variables.begin(), plan_.variables.end(),
                                    [&](const PlannedVariable& variable) { return variable.name == name; });
    return found == plan_.variables.end() ? nullptr : &*found;
  }
  /// What `name` will be; empty when nobody sets it.
  std::string value(const std::string& name) const {
    const PlannedVariable* variable = find(name);
    return variable == nullptr ? "" : variable->value;
  }
  void warn(const std::string& name, const std::string& harm, const std::string& remedy) {
    const PlannedVariable* variable = find(name);
    warnings_.push_back(
        (variable == nullptr ? name + " is not set" : name + "=" + variable->value + " (" + variable->origin + ")") +
        ": " + harm + " " + remedy);
  }
  std::vector<std::string> take() { return std::move(warnings_); }

 private:
  const EnvironmentPlan& plan_;
  std::vector<std::string> warnings_;
};

void check_efa(Warner& warner) {
  if (warner.value("FI_PROVIDER") != "efa")
    warner.warn("FI_PROVIDER", "libfabric does not take EFA, traffic between nodes goes elsewhere.",
                "Unset it, or choose the profile that is meant.");
  if (warner.value("FI_EFA_USE_DEVICE_RDMA") == "0")
    warner.warn("FI_EFA_USE_DEVICE_RDMA", "every transfer is copied through the host.",
                "Unset it where the device has RDMA (p4d and later).");
  if (warner.value("FI_EFA_FORK_SAFE") == "0")
    warner.warn("FI_EFA_FORK_SAFE",
                "with Linux before 5.13 or rdma-core before 38 a process that forks is aborted or its data destroyed.",
                "Unset it; newer ones ignore it.");
  const std::string plugin = warner.value("NCCL_NET_PLUGIN");
  if (plugin.empty() || plugin == "none") {
    warner.warn("NCCL_NET_PLUGIN", "without aws-ofi-nccl NCCL cannot use EFA and takes sockets without a word.",
                "Unset it.");
    if (whole_number(warner.value("NCCL_GIN_TYPE")).value_or(0) != 0)
      warner.warn("NCCL_GIN_TYPE", "device-initiated transfers over EFA come from the network plug-in, which is off.",
                  "Unset NCCL_NET_PLUGIN, or set NCCL_GIN_TYPE=0.");
  }
  if (warner.value("NCCL_GIN_TYPE") == "3")
    warner.warn("NCCL_GIN_TYPE", "kernel-initiated transfers need InfiniBand.", "Set 2 (proxy).");
  if (warner.value("LD_LIBRARY_PATH").find("/efa/lib") == std::string::npos)
    warner.warn("LD_LIBRARY_PATH", "EFA's libfabric is not on the search path; the plug-in may find another or none.",
                std::string("Put ") + kEfaLibraryFolder + " before the rest, or leave the variable to the profile.");
}

void check_network(NetworkProfile profile, Warner& warner) {
  if (profile == NetworkProfile::kEfa) check_efa(warner);
  if (profile != NetworkProfile::kTcp && warner.value("NCCL_NET") == "Socket")
    warner.warn("NCCL_NET", "the fast network is left unused.", "Unset it, or choose --profile tcp.");
  if (profile == NetworkProfile::kIb && whole_number(warner.value("NCCL_IB_DISABLE")).value_or(0) != 0)
    warner.warn("NCCL_IB_DISABLE", "InfiniBand is switched off; with NCCL_NET=IB the run stops at its start.",
                "Unset it, or choose --profile tcp.");
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}) {
    if (whole_number(warner.value(name)).value_or(0) != 0)
      warner.warn(name, "GPUs of a node talk through slower paths.", "Unset it outside of a search for a fault.");
  }
}

void check_connections(const config::ResolvedConfig& resolved, const NodeShape& node, Warner& warner) {
  const char* name = "CUDA_DEVICE_MAX_CONNECTIONS";
  const std::string planned = warner.value(name);
  for (const PlannedVariable& rule : recipe_variables(resolved, node)) {
    if (rule.name != name || rule.value == planned) continue;
    if (rule.value == "1" || planned == "1") warner.warn(name, rule.reason, "Set " + rule.value + ", or unset it.");
  }
}

void check_determinism(const config::RunConfig& config, Warner& warner) {
  if (config.model.deterministic_mode) {
    const std::string workspace = warner.value("CUBLAS_WORKSPACE_CONFIG");
    if (workspace != ":4096:8" && workspace != ":16:8")
      warner.warn("CUBLAS_WORKSPACE_CONFIG", "with model.deterministic_mode cuBLAS may still differ from run to run.",
                  "Set :4096:8.");
    if (warner.value("NCCL_ALGO") != "Ring")
      warner.warn("NCCL_ALGO", "with model.deterministic_mode sums may be taken in another order.", "Set Ring.");
    return;
  }
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO"}) {
    if (warner.find(name) != nullptr)
      warner.warn(name, "NCCL and its tuner can no longer choose by message size.",
                  "Unset it unless model.deterministic_mode needs it.");
  }
}

void check_recipe(const config::RunConfig& config, Warner& warner) {
  const auto registered = config.stored.find("ddp.nccl_ub");
  if (registered != config.stored.end() && registered->second == "true" && warner.value("NCCL_NVLS_ENABLE") == "0")
    warner.warn("NCCL_NVLS_ENABLE", "ddp.nccl_ub asks for reductions in the NVLink switch, which this turns off.",
                "Set 1 or leave ddp.nccl_ub out.");
  for (const auto& [name, value] : config.env_vars) {
    if (const std::string reader = unused_reader(name); !reader.empty())
      warner.warn(name, "only " + reader + " reads it, which Pharos does not use: it has no effect.", "Leave it out.");
    if (name == "LD_LIBRARY_PATH" || name == "LD_PRELOAD")
      warner.warn(name, "a program reads it before Pharos can set it: it acts under a launcher, not in `pharos train`.",
                  "Set it in the shell for a run without launcher.");
    if (!is_shell_name(name))
      warner.warn(name, "this is no name that a shell can export: the program itself sets it at its start.",
                  "Use letters, digits and underscores where anything else must see it.");
  }
}

void check_costs(const NodeShape& node, Warner& warner) {
  if (warner.value("NCCL_DEBUG") == "TRACE")
    warner.warn("NCCL_DEBUG", "a line for every call of every rank slows the run and fills the disk.",
                "Use WARN, or INFO with NCCL_DEBUG_SUBSYS=INIT,NET.");
  const std::string blocking = warner.value("CUDA_LAUNCH_BLOCKING");
  if (!blocking.empty() && blocking != "0")
    warner.warn("CUDA_LAUNCH_BLOCKING", "every kernel is waited for; nothing overlaps.",
                "Unset it outside of a search for a fault.");
  const auto threads = whole_number(warner.value("OMP_NUM_THREADS"));
  if (threads && node.cores_per_node > 0 && *threads > node.cores_per_node / node.gpus_per_node && *threads > 1)
    warner.warn(
        "OMP_NUM_THREADS",
        std::to_string(node.gpus_per_node) + " ranks of a node have more threads than its " +
            std::to_string(node.cores_per_node) + " cores.",
        "Set at most " + std::to_string(std::max<std::int64_t>(1, node.cores_per_node / node.gpus_per_node)) + ".");
}

}  // namespace

std::vector<std::string> environment_warnings(const EnvironmentPlan& plan, const config::ResolvedConfig& resolved,
                                              const NodeShape& node) {
  Warner warner(plan);
  if (resolved.config.dist.device == config::DeviceKind::kCuda) {
    check_network(plan.profile, warner);
    if (!resolved.origins.empty()) check_connections(resolved, node, warner);
    check_determinism(resolved.config, warner);
  }
  check_recipe(resolved.config, warner);
  check_costs(node, warner);
  return warner.take();
}

}  // namespace pharos::launch
