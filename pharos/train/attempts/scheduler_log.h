// What SLURM said in the log of a job about nodes that were lost.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/train/attempts/attempt_record.h"

namespace pharos::train {

/// Lines of srun and slurmstepd about node failures in slurm-JOB.log of `run_folder`, for each job of `attempts` in
/// their order, as "slurm-7.log: srun: error: Node failure on n2"; each line once. The log says no more than that: of
/// several attempts of one job it is not known which one. A log that is missing or cannot be read has none.
std::vector<std::string> read_node_failures(const std::filesystem::path& run_folder,
                                            const std::vector<AttemptRecord>& attempts);

}  // namespace pharos::train
