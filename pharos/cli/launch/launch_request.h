// From the command line of `pharos launch` to a checked request.
#pragma once

#include <string>
#include <vector>

#include "pharos/cli/launch/launch_options.h"
#include "pharos/launch/slurm/slurm_request.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::cli {

struct CheckedRequest {
  launch::slurm::SlurmRequest slurm;
  std::vector<std::string> notes;     ///< what the user should know, sentences
  std::vector<std::string> warnings;  ///< what would fail later, sentences
};

/// Whether this process is in an allocation of SLURM. UserError when it is a task of a step: tasks start no steps.
bool is_in_allocation(const lens::Environment& environment);

/// Everything decided and checked. UserError with all problems together. With `is_dry_run` a missing or silent SLURM is
/// only a note.
CheckedRequest make_launch_request(const LaunchOptions& options, const lens::Environment& environment);

}  // namespace pharos::cli
