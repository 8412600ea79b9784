// What `pharos launch` asks of SLURM.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pharos/launch/cluster/job_request.h"

namespace pharos::launch::slurm {

struct SlurmRequest {
  JobRequest job;                         ///< run_folder: absolute, as this machine and the batch script see it
  std::filesystem::path task_run_folder;  ///< the same as the tasks see it: in the container
  std::filesystem::path host_program;     ///< this program, for the batch script
  std::string partition = {}, account = {}, qos = {}, constraint = {}, time = {};  ///< empty: what SLURM does itself
  std::string array = {};  ///< of --array; each task has its own folder in the run's and replaces %a in overrides
  std::string mpi = "pmix";
  std::string signal = "TERM@120";               ///< of --signal; empty: none
  std::vector<std::string> variables = {};       ///< names that are passed on into the tasks
  std::vector<std::string> srun_arguments = {};  ///< words, passed on last
  std::vector<std::string> sbatch_arguments = {};
  bool asks_for_gpus = false;     ///< --gpus-per-node and the whole node
  bool is_requeued = false;       ///< what is worth another try goes back into the queue
  std::int64_t max_requeues = 3;  ///< starts in a row that save no further step
  bool has_port_of_job = false;   ///< the job's number modulo 1000 is added to the default port: nodes may be shared
  bool is_chained = false;        ///< several jobs one after another continue one run
};

}  // namespace pharos::launch::slurm
