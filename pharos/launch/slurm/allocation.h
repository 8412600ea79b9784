// What an allocation of SLURM holds, against what the ranks need.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "pharos/launch/slurm/preflight.h"

namespace pharos::launch::slurm {

struct Allocation {
  std::int64_t num_nodes = 1;
  std::vector<std::int64_t> cpus = {};  ///< of each node, in their order; empty: unknown
  std::optional<std::int64_t> gpus;     ///< of all nodes together; nullopt: unknown
};

/// CPUs of each node from $SLURM_JOB_CPUS_PER_NODE, "16(x2),8"; empty when it is not of that form.
std::vector<std::int64_t> parse_cpus_per_node(std::string_view text);

/// GPUs from what `scontrol show job -d` prints of a job; nullopt: it does not say.
std::optional<std::int64_t> parse_job_gpus(std::string_view text);

/// The nodes have a CPU for each rank and, where the request asks for them, a GPU: srun would only say that more is
/// requested than permitted.
void check_allocation(const SlurmRequest& request, const Allocation& allocation, Problems& problems);

}  // namespace pharos::launch::slurm
