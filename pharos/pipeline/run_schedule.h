// The schedule that a configuration asks for.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// The schedule of model.pipeline_schedule, a name of schedule_names() or else a file (schedule_from_file), for the
/// pipeline size and the model chunks of `model`. UserError for a name that is neither, a file for another shape, and a
/// number of microbatches that it cannot run.
Schedule schedule_of(const config::ModelConfig& model, int num_microbatches);

/// [pipeline rank][chunk] -> stage, in the schedule of `model`; its number of microbatches does not matter. UserError.
std::vector<std::vector<int>> stages_of_ranks(const config::ModelConfig& model);
/// [stage] -> pipeline rank: the same the other way round.
std::vector<int> ranks_of_stages(const config::ModelConfig& model);

/// The forwards of a step without backward passes (evaluation), with the stages where the schedule of `model` has them:
/// in groups of as many microbatches as there are ranks, stage after stage. Any number of microbatches. UserError.
Schedule forward_schedule(const config::ModelConfig& model, int num_microbatches);

/// UserError unless the schedule can run the number of microbatches of every global batch size of the run
/// (config::global_batch_sizes); it names the size. `config` must be valid.
void check_microbatch_counts(const config::RunConfig& config, std::int64_t data_parallel);

}  // namespace pharos::pipeline
