// The shell script of a job: it finds where the ranks meet, decides once for all of them whether the run continues, and
// starts one process per GPU by `srun`.
#pragma once

#include <string>

#include "pharos/launch/slurm/slurm_request.h"

namespace pharos::launch::slurm {

/// For sbatch. Its exit code is that of Pharos (base::ExitCode): the one with which the first rank failed. It goes back
/// into the queue itself where the request says so and another try can help. Argument 1 is the job's number in a chain;
/// from 2 on the script leaves at once when the run has come to its end. RUN_FOLDER/launch.end keeps the last code.
std::string batch_script(const SlurmRequest& request);

/// For a shell inside an allocation: the same up to `srun`, which it becomes.
std::string allocation_script(const SlurmRequest& request);

}  // namespace pharos::launch::slurm
