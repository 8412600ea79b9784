#include "pharos/plan/pipeline/stage_costs.h"

#include <fmt/format.h>

#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/model/flops.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/pipeline/report/measured_timeline.h"
#include "pharos/plan/layers/common.h"
#include "pharos/plan/pipeline/kept.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;
using config::RunConfig;

double size_of(config::DType type) {
  if (type == config::DType::kFloat8) return 1;
  return type == config::DType::kFloat32 ? 4 : 2;
}

/// Operations a token; the gradient of a product's input takes as many as the product, and so does that of a weight.
struct Operations {
  double forward = 0, backward = 0, weight = 0;

  void add(const model::ForwardFlops& flops, double recomputed) {
    forward += flops.matrices + flops.attention;
    backward += flops.matrices + 2 * flops.attention + recomputed;
    weight += flops.matrices;
  }
};

Operations operations_of(const ModelConfig& model, const ModelChunk& chunk) {
  const RecomputePlan recompute = recompute_plan(model);
  const bool mlp_again = recomputes(model, "mlp") || recomputes(model, "moe");
  Operations sum;
  for (std::int64_t i = 0; i < chunk.num_layers; ++i) {
    const model::ForwardFlops flops = model::layer_forward_flops(model, chunk.first_layer + i);
    double recomputed = recomputes_core_attention(model) ? flops.attention : 0;
    if (mlp_again) recomputed += model::mlp_forward_flops(model, chunk.first_layer + i);
    if (recompute.is_recomputed(i)) recomputed = flops.matrices + flops.attention;
    sum.add(flops, recomputed);
  }
  if (chunk.output) sum.add(model::output_forward_flops(model), 0);
  return sum;
}

/// Fills in what a microbatch keeps on each stage.
void add_bytes(PlannedCosts& planned, const RunConfig& config, const std::vector<ModelChunk>& chunks, bool defers) {
  pipeline::StageCosts& costs = planned.costs;
  costs.activation_bytes.assign(chunks.size(), 0);
  costs.weight_bytes.assign(chunks.size(), 0);
  const LayerShape shape = layer_shape(config);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const KeptByStage kept = kept_by_stage(config.model, shape, chunks[i], defers);
    costs.activation_bytes[i] = kept.until_backward();
    costs.weight_bytes[i] = kept.until_weight();
  }
}

}  // namespace

double boundary_bytes(const RunConfig& config) {
  const ModelConfig& model = config.model;
  const LayerShape shape = layer_shape(config);
  return shape.stream_tokens() * shape.hidden * size_of(model.pipeline_dtype.value_or(config::compute_dtype(model)));
}

PlannedCosts costs_from_flops(const RunConfig& config, const std::vector<ModelChunk>& chunks, bool defers) {
  PlannedCosts planned;
  pipeline::StageCosts& costs = planned.costs;
  costs.transfer.assign(chunks.size(), 0);
  double total = 0;
  for (const ModelChunk& chunk : chunks) {
    const Operations operations = operations_of(config.model, chunk);
    costs.forward.push_back(operations.forward);
    costs.backward.push_back(operations.backward);
    costs.weight.push_back(operations.weight);
    total += operations.forward + operations.backward + operations.weight;
  }
  double scale = static_cast<double>(config.model.pipeline_model_parallel_size) / total;
  planned.time_unit = "rank times";
  planned.source = "operations of the stages; transfers take no time";
  if (const auto& rate = config.logger.peak_tflops_per_device) {
    const ModelConfig& model = config.model;
    const double tokens = static_cast<double>(*config.train.micro_batch_size * model.seq_length) /
                          static_cast<double>(model.tensor_model_parallel_size * model.context_parallel_size);
    scale = tokens / (*rate * 1e12) * 1e3;
    planned.time_unit = "ms";
    planned.source += fmt::format(", at {} TFLOP/s", *rate);
  }
  for (auto* times : {&costs.forward, &costs.backward, &costs.weight}) {
    for (double& time : *times) time *= scale;
  }
  add_bytes(planned, config, chunks, defers);
  return planned;
}

PlannedCosts costs_from_run(const RunConfig& config, const std::vector<ModelChunk>& chunks, bool defers,
                            const std::filesystem::path& run_folder) {
  const std::vector<pipeline::MeasuredStep> steps = pipeline::read_measured_steps(run_folder);
  if (steps.empty()) {
    throw base::UserError({.what = "The run in " + run_folder.string() + " has no measured pipeline steps.",
                           .fix = "Give the folder of a run with a pipeline size above 1."});
  }
  const pipeline::MeasuredStep& one = steps.back();
  const auto num_stages = static_cast<std::size_t>(one.num_ranks) * static_cast<std::size_t>(one.num_chunks);
  if (num_stages != chunks.size()) {
    throw base::UserError(
        {.what = fmt::format("The run in {} had {} stages ({} pipeline ranks with {} model chunk{} each), this "
                             "configuration has {}.",
                             run_folder.string(), num_stages, one.num_ranks, one.num_chunks,
                             one.num_chunks == 1 ? "" : "s", chunks.size()),
         .where = "--costs",
         .fix = "Give a run with the same stages, or leave out --costs: times are then from operations."});
  }
  PlannedCosts planned{pipeline::costs_of(steps), "ms",
                       "the times that the run in " + run_folder.string() + " measured"};
  add_bytes(planned, config, chunks, defers);
  return planned;
}

}  // namespace pharos::plan
