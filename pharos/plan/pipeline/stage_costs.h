// What the stages of a configuration cost: the input of the pipeline's simulator.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/pipeline/simulate.h"
#include "pharos/plan/stages.h"

namespace pharos::plan {

struct PlannedCosts {
  pipeline::StageCosts costs;
  std::string time_unit;  ///< "ms", or "rank times": the mean rank, forward and both gradients of a microbatch
  std::string source;     ///< where the times come from, for people
};

/// Bytes of a tensor that one rank hands to the next stage: its tokens of a microbatch x hidden size, in
/// model.pipeline_dtype or the compute type.
double boundary_bytes(const config::RunConfig& config);

/// Of the stages `chunks` on one rank of the tensor- and context-parallel group: times from the operations of products
/// of matrices and of attention (model::layer_forward_flops; experts with as many tokens each), what is recomputed with
/// a second forward pass; in milliseconds at logger.peak_tflops_per_device if that is given. Transfers take no time.
/// `defers`: the schedule has weight gradients of their own.
PlannedCosts costs_from_flops(const config::RunConfig& config, const std::vector<ModelChunk>& chunks, bool defers);

/// The same with times measured by a run (trace/pipeline_rank_N.jsonl in its folder). UserError when that run had
/// another number of stages or measured nothing.
PlannedCosts costs_from_run(const config::RunConfig& config, const std::vector<ModelChunk>& chunks, bool defers,
                            const std::filesystem::path& run_folder);

}  // namespace pharos::plan
