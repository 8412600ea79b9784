// What another schedule, or another split of the layers, would give with the stage times that were measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

struct Alternative {
  std::string schedule;
  int num_chunks = 1;
  std::string obstacle;  ///< why it cannot be run with these ranks and microbatches, and what can; the rest is 0 then
  std::vector<int> layers;  ///< [stage]; empty: unknown
  std::string arguments;    ///< that set it on the command line: schedule, and layout where the stages are others
  double span = 0;
  double bubble = 0;
  double peak_rank_shares = 0;  ///< of the rank that keeps most
  double peak_bytes = 0;        ///< 0: not measured
};

/// Times of the layers within the stages; in the unit of the costs.
struct LayerTimes {
  std::vector<double> per_layer;  ///< [stage]; all phases
  double first_extra = 0;         ///< of the first stage: embedding
  double last_extra = 0;          ///< of the last stage: norm, output layer, loss
};

/// time(stage) = layers x per_layer, and on the first and last stage an extra beside. layers: [stage]. A middle stage's
/// per_layer is its own; the ends take the mean of the middle (all its time by all its layers). Without layers in the
/// middle, the first stage is taken to have no extra.
LayerTimes layer_times(const StageCosts& costs, const std::vector<int>& layers);

/// Costs of the same model cut into other stages: each layer takes what it took on the stage where it was measured, the
/// extras of layer_times() stay at the ends. A hop that was not there has the mean of those that were. layers:
/// [measured stage], two or more; new_layers: [new stage], as many in all. Use it for every forecast of other stages
/// from measured times, so that forecasts agree.
StageCosts restaged(const StageCosts& costs, const std::vector<int>& layers, const std::vector<int>& new_layers);

/// [new stage] -> layers, when each stage is divided (or stages are merged) as evenly as whole layers allow.
std::vector<int> divided_layers(const std::vector<int>& layers, int num_stages);

/// restaged() with divided_layers(). Without layers (empty: unknown) a stage is taken as even inside and there are no
/// extras.
StageCosts resampled(const StageCosts& costs, int num_stages, const std::vector<int>& layers = {});

/// The other schedules of schedule_names() for the same ranks and microbatches, shortest span first, those that cannot
/// be run at the end. A schedule with another number of chunks gets resampled() costs; `interleaved` two chunks, or as
/// many as `schedule` has.
std::vector<Alternative> other_schedules(const Schedule& schedule, const StageCosts& costs,
                                         const std::vector<int>& layers = {});

/// The command-line argument for a split, quoted for a shell, where a bare value with commas would be a list:
/// 'model.pipeline_model_parallel_layout="Et*2|t*2L"'.
std::string layout_argument(const std::vector<int>& layers);

struct Split {
  std::vector<int> layers;  ///< [stage]
  std::string arguments;    ///< that set it on the command line
  StageCosts costs;
  double span = 0;
  double bubble = 0;
};

/// The split of whole layers whose busiest rank has least to do, layers taking on a stage what layer_times() says; of
/// equal ones one that is near to `layers`.
/// Nothing when its span is not shorter than that of `layers`, or when a stage is the whole model.
std::optional<Split> better_split(const Schedule& schedule, const StageCosts& costs, const std::vector<int>& layers);

}  // namespace pharos::pipeline
