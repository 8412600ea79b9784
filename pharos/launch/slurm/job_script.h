// The shell script of a job: it finds where the ranks meet, decides once for all of them whether the run continues, and
// starts one process per GPU by `srun`.
#pragma once

#include <string>
#include <vector>

#include "pharos/launch/slurm/slurm_request.h"

namespace pharos::launch::slurm {

/// The options of sbatch, for its command line: there they come before $SBATCH_…, which comes before the script's.
/// UserError for a run folder that cannot hold a log.
std::vector<std::string> batch_options(const SlurmRequest& request);

/// For sbatch. Its exit code is that of Pharos (base::ExitCode): the one with which the first rank failed. It goes back
/// into the queue itself where the request says so and another try can help. The arguments are the jobs of its chain
/// before it; when one of them has brought the run to its end, as RUN_FOLDER/launch.end says, it leaves at once.
std::string batch_script(const SlurmRequest& request);

/// For a shell inside an allocation: the same up to `srun`, which it becomes.
std::string allocation_script(const SlurmRequest& request);

}  // namespace pharos::launch::slurm
