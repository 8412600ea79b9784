// What is said of jobs that sbatch took, or did not take.
#pragma once

#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/launch/slurm/slurm_request.h"

namespace pharos::launch::slurm {

/// The numbers of the jobs and how to follow, stop and cancel them: commands that can be pasted into a shell.
std::string submission_text(const SlurmRequest& request, const std::vector<std::string>& jobs);

/// sbatch said `message` and took no further job; `jobs` of the same chain are queued already.
base::UserError::Parts refusal(const std::string& message, const std::vector<std::string>& jobs);

}  // namespace pharos::launch::slurm
