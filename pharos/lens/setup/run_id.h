// Names of a run: its id, and the two UUIDs that Megatron derives from the Slurm job (megatron-telemetry.md 4.4, 4.5).
#pragma once

#include <string>
#include <string_view>

#include "pharos/lens/setup/lens_config.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// The first of: config.run_id, SLURM_JOB_ID, TORCHELASTIC_RUN_ID (unless "none", torchrun's default), PMIX_NAMESPACE,
/// PBS_JOBID, LSB_JOBID, `shared` (one that all ranks know, for example made by the launcher), 12 random hexadecimal
/// digits. All but the last are the same on every rank; nemo-lens knows only the first two and the last.
std::string choose_run_id(const LensConfig& config, const Environment& environment, const std::string& shared = "");

/// 12 lower-case hexadecimal digits from the operating system's randomness.
std::string make_random_run_id();

/// Version 5 UUID (RFC 9562) of `name` in the URL namespace, in lower case.
std::string uuid5_of_url(std::string_view name);

/// UUID of the Slurm job, the same through requeues: of "nemo.lens.job/<cluster>/<job>".
std::string job_uuid(const Environment& environment);

/// UUID of this attempt: of "nemo.lens.run/<cluster>/<job>[/sr<restart>][/te<elastic restart>]". The `sr` part is left
/// out of array jobs, the `te` part is there only when TORCHELASTIC_RESTART_COUNT is. Outside Slurm cluster and job are
/// "nocluster" and "nojob", so neither UUID tells two local runs apart; nemo.run.id does.
std::string run_uuid(const Environment& environment);

}  // namespace pharos::lens
