// What SLURM says about itself, asked before a job is submitted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch::slurm {

/// Nodes of one kind in one partition.
struct NodeGroup {
  std::int64_t num_nodes = 0;
  std::int64_t cpus = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t gpus = 0;
  std::string partition;
  bool is_default = false;                              ///< jobs go there that name no partition
  std::optional<std::int64_t> time_limit_seconds = {};  ///< of a job there; nullopt: none
};

struct ClusterFacts {
  std::vector<std::string> missing_commands;  ///< that are not in PATH; then nothing else was asked
  std::string silence = {};                   ///< what sinfo said instead of an answer; empty: it answered
  std::vector<NodeGroup> nodes = {};
  std::vector<std::string> mpi_types = {};  ///< of srun --mpi; empty: unknown
  bool has_pyxis = false;                   ///< srun knows --container-image
};

/// GPUs in a list of generic resources: "gpu:8(S:0-1)", "gpu:h100:8,shard:16", "(null)".
std::int64_t count_gpus(const std::string& resources);

/// Lines of `sinfo -h -e -o '%D|%c|%m|%G|%P|%l'`; others are left out.
std::vector<NodeGroup> parse_node_groups(std::string_view text);

/// Names in the output of `srun --mpi=list`, of which the wording differs between versions.
std::vector<std::string> parse_mpi_types(std::string_view text);

/// Takes from the environment of this process what changes the answers of SLURM's commands or what sbatch does in a way
/// that Pharos does not know of: the user's formats and filters ($SQUEUE_…, $SINFO_…), $SBATCH_WAIT and the like. What
/// sbatch is asked by its command line needs no such care.
void unset_slurm_habits();

/// Asks sinfo and srun; seconds at most.
ClusterFacts read_cluster_facts(const std::vector<std::string>& needed_commands);

}  // namespace pharos::launch::slurm
