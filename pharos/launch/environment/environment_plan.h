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
  /// As a shell's double-quoted word: may refer to other variables ("$SLURM_PROCID"), which are known only in the task.
  std::string value;
  std::string reason;  ///< one sentence: what it is for; of a recipe's variable: the rule, or "env_vars of the recipe"
  VariableSource source = VariableSource::kProfile;
  std::string origin = {};                  ///< "profile efa", "recipe tiny (tiny.yaml:3)", "environment"
  std::vector<std::string> overruled = {};  ///< "profile efa: NCCL_DEBUG=WARN", what would have been set otherwise
};

struct EnvironmentPlan {
  NetworkProfile profile = NetworkProfile::kTcp;
  std::vector<PlannedVariable> variables;  ///< in the order to set them: a value refers only to earlier ones
  std::vector<std::string> warnings;       ///< combinations that do harm, with the remedy
};

/// The plan for a run of `resolved` on nodes joined by `profile`. A variable that `user` has set stays as it is and is
/// listed with its source. Recipe: env_vars, and what follows from the configuration (parallel sizes, overlap, …).
EnvironmentPlan plan_environment(const config::ResolvedConfig& resolved, NetworkProfile profile,
                                 const lens::Environment& user);

/// `export NAME="value"` lines of a POSIX shell for the variables that are not the user's, in order.
std::string export_lines(const EnvironmentPlan& plan);

}  // namespace pharos::launch
