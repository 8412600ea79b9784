// `pharos launch --k8s --dry-run`: the job as a manifest of Kubernetes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/cli/launch/launch_options.h"

namespace pharos::cli {

struct KubernetesArguments {
  bool is_given = false;  ///< --k8s
  std::string kind;       ///< empty: pytorchjob
  std::string name_space, shared_memory;
  std::optional<std::int64_t> efa_per_node;
  std::int64_t grace_seconds = 300;
  std::optional<std::int64_t> max_restarts;
  std::vector<std::string> node_selector;  ///< KEY=VALUE
};

/// Adds --k8s and what belongs to it, after the other options of `pharos launch`: those of SLURM exclude it.
void add_kubernetes_options(CLI::App& command, KubernetesArguments& arguments);

/// Checks the configuration and prints the manifest; notes go to standard error. UserError: without --dry-run, or what
/// the manifest cannot hold.
void print_manifest(const LaunchOptions& options, const KubernetesArguments& arguments);

}  // namespace pharos::cli
