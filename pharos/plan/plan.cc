#include "pharos/plan/plan.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/parallel_sizes.h"
#include "pharos/config/derived.h"
#include "pharos/model/flops.h"
#include "pharos/plan/estimate_setup.h"

namespace pharos::plan {
namespace {

using config::RunConfig;

StepPlan plan_steps(const RunConfig& config, const comm::Mesh& mesh) {
  const std::int64_t data = mesh.size(comm::MeshDim::kData);
  StepPlan steps;
  steps.iterations = config::total_train_iterations(config, data);
  steps.samples = config::total_train_samples(config, data);
  steps.global_batch_size = final_global_batch_size(config, data);
  steps.num_microbatches = estimate_setup(config, mesh).num_microbatches;
  const auto length = static_cast<double>(config.model.seq_length);
  steps.tokens = static_cast<double>(steps.samples) * length;
  steps.tokens_per_step = static_cast<double>(steps.global_batch_size) * length;
  return steps;
}

FlopsPlan plan_flops(const RunConfig& config, const StepPlan& steps) {
  FlopsPlan flops;
  flops.step = model::training_flops(config.model, steps.global_batch_size);
  flops.token = flops.step / steps.tokens_per_step;
  flops.total = model::training_flops(config.model, steps.samples);
  flops.full_attention_step = model::full_attention_training_flops(config.model, steps.global_batch_size);
  return flops;
}

/// Evaluations as the training loop does them: after every eval_interval-th step from start_eval_at_iter on, and of
/// validation and test data after the last one.
EvaluationPlan plan_evaluations(const RunConfig& config, const StepPlan& steps) {
  const auto& validation = config.validation;
  EvaluationPlan plan;
  if (validation.eval_iters <= 0) return plan;
  plan.samples_each = validation.eval_iters * config::eval_global_batch_size_or_default(config);
  plan.at_end = 2;
  const std::int64_t interval = validation.eval_interval.value_or(0);
  if (interval <= 0 || validation.skip_train) return plan;
  const std::int64_t first = std::max<std::int64_t>(1, validation.start_eval_at_iter.value_or(0));
  plan.during_training = std::max<std::int64_t>(0, steps.iterations / interval - (first - 1) / interval);
  return plan;
}

std::vector<std::string> notes_of(const RunConfig& config, const Plan& plan) {
  std::vector<std::string> notes;
  if (config.model.num_moe_experts) {
    notes.emplace_back(
        "Activations, transfers and times of experts assume that all of them get as many tokens; the worst routing "
        "stands beside the peak.");
  }
  if (config.dist.device == config::DeviceKind::kCuda) {
    notes.emplace_back("Memory is device memory of tensors; the CUDA context and library workspaces come on top.");
  }
  std::vector<std::string> missing;
  for (const DataFile& file : plan.dataset.files) {
    if (!file.found) missing.push_back(file.prefix);
  }
  if (!missing.empty()) {
    notes.push_back("No .bin/.idx pair yet: " + base::join(missing, ", ") +
                    "; epochs and memory of the data are left out for it.");
  }
  return notes;
}

}  // namespace

Plan make_plan(const config::ResolvedConfig& resolved, std::int64_t world_size,
               const std::optional<std::filesystem::path>& costs_run) {
  const RunConfig& config = resolved.config;
  const comm::Mesh mesh(world_size, comm::parallel_sizes(config));
  Plan plan;
  plan.recipe = resolved.recipe_name;
  plan.mesh = mesh;
  using comm::MeshDim;
  plan.dims = {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData, MeshDim::kPipeline};
  if (config.model.num_moe_experts)
    plan.dims.insert(plan.dims.end(), {MeshDim::kExpertTensor, MeshDim::kExpert, MeshDim::kExpertData});
  plan.chunks = model_chunks(config.model);
  if (config.model.pipeline_model_parallel_size > 1 && !config.validation.skip_train)
    plan.pipeline = plan_pipeline(resolved, mesh, costs_run);
  if (costs_run && !plan.pipeline) {
    throw base::UserError(
        {.what = "This configuration trains on one stage: there is nothing to take measured times for.",
         .where = "--costs",
         .fix = "Leave it out, or choose model.pipeline_model_parallel_size above 1."});
  }
  plan.parameters = plan_parameters(config, mesh);
  plan.steps = plan_steps(config, mesh);
  plan.flops = plan_flops(config, plan.steps);
  plan.evaluations = plan_evaluations(config, plan.steps);
  plan.dataset = plan_dataset(config, mesh.size(comm::MeshDim::kData));
  plan.memory = plan_memory(config, mesh, plan.parameters, plan.dataset.memory_bytes);
  plan.communication = plan_communication(config, mesh, plan.parameters, plan.steps.num_microbatches);
  plan.megatron = model::estimate_memory(config.model, estimate_setup(config, mesh));
  plan.megatron_lines = model::render_memory_lines(config.model, plan.megatron);
  plan.checkpoint = plan_checkpoints(resolved, mesh, plan.steps.iterations);
  plan.notes = notes_of(config, plan);
  return plan;
}

}  // namespace pharos::plan
