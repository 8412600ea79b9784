// What `pharos launch` is asked to run, whatever runs it: SLURM or Kubernetes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

/// A root file system that the ranks run in.
struct ContainerRequest {
  std::string image;                ///< SLURM: a squashfs file ($SQSH); Kubernetes: a reference in a registry
  std::string name = {};            ///< --container-name, pyxis keeps the unpacked image under it; empty: none
  std::vector<std::string> mounts;  ///< "SOURCE:TARGET" or "SOURCE:TARGET:FLAGS" ($MOUNT, comma-separated)
  std::string work_folder = {};     ///< inside the container; empty: that of the image
};

struct JobRequest {
  std::string name;                             ///< of the job
  std::string recipe;                           ///< name or path, as given
  std::vector<std::string> overrides;           ///< key=value, as given
  std::vector<std::string> train_options = {};  ///< further words of `pharos train`, for example --otel-enabled
  std::filesystem::path run_folder;             ///< of the run, the same through requeues and over a chain of jobs
  std::string program = "pharos";               ///< the program as a task finds it: a path, or a name of its PATH
  std::int64_t num_nodes = 1;
  std::int64_t gpus_per_node = 8;     ///< ranks of a node ($GPUS_PER_NODE)
  std::uint16_t master_port = 29500;  ///< $MASTER_PORT
  std::optional<ContainerRequest> container;
  EnvironmentPlan environment;
  bool uses_nsys = false;                     ///< --nsys: ranks of `nsys_ranks` run under Nsight Systems
  std::vector<std::int64_t> nsys_ranks = {};  ///< profiling.profile_ranks; empty: every rank
  bool uses_gpus = true;                      ///< dist.device is not cpu: GPUs are asked of the scheduler
};

}  // namespace pharos::launch
