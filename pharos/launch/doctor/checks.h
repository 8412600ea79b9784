// The checks of one node, by name, and running them within a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/launch/doctor/node.h"

namespace pharos::launch {

struct Check {
  const char* name;
  const char* description;
  Findings (*run)(const Node& node);
  bool is_benchmark = false;  ///< measures a speed, so it runs when nothing else does
};

/// In the order of the table.
const std::vector<Check>& node_checks();
/// Names of checks across ranks, with what they do.
const std::vector<std::pair<std::string, std::string>>& rank_checks();

/// Throws UserError with the nearest names when one of `names` is no check.
void require_known_checks(const std::vector<std::string>& names);

struct CheckTimes {
  std::int64_t deadline_ns = 0;     ///< of all, base::monotonic_ns()
  std::int64_t check_limit_ns = 0;  ///< of one check
};

/// Runs the checks `only` names (all when it is empty), each in a child process. One that does not end in time, dies or
/// throws is a finding.
Findings run_node_checks(const Node& node, const std::vector<std::string>& only, const CheckTimes& times);

Findings check_cpu(const Node& node);
Findings check_memory(const Node& node);
Findings check_limits(const Node& node);
Findings check_clock(const Node& node);
Findings check_gpu(const Node& node);
Findings check_versions(const Node& node);
Findings check_network(const Node& node);
Findings check_provider(const Node& node);
Findings check_container(const Node& node);
Findings check_variables(const Node& node);
Findings check_disk(const Node& node);
Findings check_shared(const Node& node);
Findings check_gemm(const Node& node);
Findings check_bandwidth(const Node& node);

}  // namespace pharos::launch
