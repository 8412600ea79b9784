// What a run will need and do, computed from its configuration without running it. Nothing is allocated on a device.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/resolve.h"
#include "pharos/model/theoretical_memory.h"
#include "pharos/plan/checkpoint_plan.h"
#include "pharos/plan/dataset.h"
#include "pharos/plan/memory.h"
#include "pharos/plan/parallel/communication.h"
#include "pharos/plan/parameters.h"
#include "pharos/plan/pipeline/pipeline_plan.h"
#include "pharos/plan/stages.h"

namespace pharos::plan {

/// Operations by model::training_flops(), at the final global batch size.
struct FlopsPlan {
  double step = 0;
  double token = 0;
  double total = 0;                ///< of the whole run
  double full_attention_step = 0;  ///< without masks taken off
};

struct StepPlan {
  std::int64_t iterations = 0;
  std::int64_t samples = 0;
  double tokens = 0;
  std::int64_t global_batch_size = 0;  ///< samples, at the end of the run
  std::int64_t num_microbatches = 0;   ///< a step and data-parallel rank, likewise
  double tokens_per_step = 0;
};

struct EvaluationPlan {
  std::int64_t during_training = 0;
  std::int64_t at_end = 0;  ///< of validation and test data
  std::int64_t samples_each = 0;
};

struct Plan {
  std::string recipe;
  comm::Mesh mesh{1, {}};
  std::vector<comm::MeshDim> dims;  ///< that the model uses: without those of the expert layout if it has no experts
  std::vector<ModelChunk> chunks;
  ParameterPlan parameters;
  MemoryPlan memory;
  CommunicationPlan communication;
  std::optional<PipelinePlan> pipeline;  ///< of a run that trains with a pipeline size above 1
  model::MemoryEstimate megatron;
  std::vector<std::string> megatron_lines;
  FlopsPlan flops;
  StepPlan steps;
  EvaluationPlan evaluations;
  DatasetPlan dataset;
  CheckpointPlan checkpoint;
  std::vector<std::string> notes;  ///< what the reader should know of how the numbers came about
};

/// `resolved` must be valid for `world_size` ranks (config::prepare with Purpose::kPlan). UserError for a damaged
/// header of a dataset, and from plan_pipeline(), which gets `costs_run`.
Plan make_plan(const config::ResolvedConfig& resolved, std::int64_t world_size,
               const std::optional<std::filesystem::path>& costs_run = std::nullopt);

}  // namespace pharos::plan
