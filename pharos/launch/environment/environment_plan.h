// The variables a training process starts with on a cluster: those of a network profile, of the recipe and of the user,
// each with its reason (bridge-config.md 10.2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/config/resolve.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::launch {

/// What connects the nodes.
enum class NetworkProfile : std::uint8_t {
  kEfa,  ///< AWS Elastic Fabric Adapter: libfabric under NCCL by aws-ofi-nccl
  kIb,   ///< InfiniBand or RoCE by NCCL's own verbs transport
  kTcp,  ///< sockets
};

/// "efa", "ib", "tcp".
std::string_view name_of(NetworkProfile profile);
/// UserError naming the three when `name` is none of them.
NetworkProfile parse_network_profile(const std::string& name);

/// Who decided a value. A later one wins over an earlier one.
enum class VariableSource : std::uint8_t { kProfile, kRecipe, kUser };

struct PlannedVariable {
  std::string name;
  /// Of the profile: the inside of a shell's double-quoted word, which may refer to variables that only the task knows
  /// ("$SLURM_PROCID"). Of recipe and user: these characters.
  std::string value;
  std::string reason;  ///< one sentence: what it is for; of a recipe's variable: the rule, or "env_vars of the recipe"
  VariableSource source = VariableSource::kProfile;
  std::string origin = {};                  ///< "profile efa", "recipe tiny (tiny.yaml:3)", "environment"
  std::vector<std::string> overruled = {};  ///< "profile efa: NCCL_DEBUG=WARN", what would have been set otherwise
};

struct EnvironmentPlan {
  NetworkProfile profile = NetworkProfile::kTcp;
  std::vector<PlannedVariable> variables;    ///< in the order to set them: a value refers only to earlier ones
  std::vector<PlannedVariable> unused = {};  ///< what the recipe asks of libraries Pharos has not; never exported
  std::vector<std::string> warnings;         ///< combinations that do harm, with the remedy
};

/// What the nodes are like, as far as it is known.
struct NodeShape {
  std::int64_t gpus_per_node = 8;   ///< ranks of a node
  std::int64_t cores_per_node = 0;  ///< 0: unknown, nothing is compared with it
  std::string gpu = {};             ///< "h100", "b200", "gb200", …; empty: as the recipe or a base of it is named
};

/// The GPUs that rules know by name.
const std::vector<std::string>& known_gpus();

/// The plan for a run of `resolved` on nodes joined by `profile`. A variable that `user` has set stays as it is and is
/// listed with its source, as are all its variables of NCCL and libfabric. LD_LIBRARY_PATH is a list: folders of the
/// profile are put before what is in it, unless `user` has them in it already. Recipe: env_vars, and what follows from
/// the configuration (bridge-config.md 10.2); env_vars win over the latter. With dist.device = cpu only what a CPU rank
/// reads is planned; a `resolved` that nothing was set in has no rules. UserError: the configuration has no valid value
/// of a variable (HybridEP beyond an NVLink domain), or env_vars names one that the launcher sets for each rank.
EnvironmentPlan plan_environment(const config::ResolvedConfig& resolved, NetworkProfile profile,
                                 const lens::Environment& user, const NodeShape& node = {});

/// Whether the launcher gives the variable to each rank itself: RANK and the like.
bool is_set_for_ranks(std::string_view name);

/// Whether a POSIX shell can export a variable of this name.
bool is_shell_name(std::string_view name);

/// `export NAME="value"` for a POSIX shell.
std::string export_line(const PlannedVariable& variable);

/// Such lines for the variables that are not the user's, in order; without those of env_vars whose name is none of a
/// shell, which `pharos train` sets itself.
std::string export_lines(const EnvironmentPlan& plan);

}  // namespace pharos::launch
