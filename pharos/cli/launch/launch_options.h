// What `pharos launch` was given on its command line.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pharos::cli {

struct LaunchOptions {
  std::string recipe;
  std::vector<std::string> overrides;
  std::optional<std::int64_t> num_nodes;
  std::optional<std::int64_t> gpus_per_node;  ///< else $GPUS_PER_NODE, else 8
  std::string partition, account, qos, constraint, time, array, job_name, run_folder, program;
  std::string mpi = "pmix";
  std::string signal = "TERM@120";
  std::string profile = "efa";
  std::optional<std::string> image;   ///< else $SQSH, else ./pharos+latest.sqsh if there is one
  std::optional<std::string> mounts;  ///< else $MOUNT, else .:/workspace/pharos,/fsx:/fsx
  std::string container_name;
  bool has_no_container = false;
  bool has_no_gpu_request = false;
  bool uses_nsys = false;
  bool is_dry_run = false;
  bool waits = false;
  bool is_requeued = false;
  std::optional<std::int64_t> max_requeues;  ///< else 3
  std::int64_t chain_length = 1;
  std::vector<std::string> srun_arguments, sbatch_arguments, train_arguments, variables;
  std::optional<std::string> node_list;  ///< --expand-nodes: print its hosts, nothing else
};

void add_launch_options(CLI::App& command, LaunchOptions& options);

}  // namespace pharos::cli
