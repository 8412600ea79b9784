#include "pharos/plan/pipeline/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/validate/validate.h"
#include "pharos/pipeline/render.h"
#include "pharos/pipeline/run_schedule.h"
#include "pharos/pipeline/transfers.h"
#include "pharos/plan/estimate_setup.h"

namespace pharos::plan {
namespace {

using config::ModelConfig;
using config::ResolvedConfig;

bool defers_weights(const pipeline::Schedule& schedule) {
  return pipeline::last_phase(schedule) == pipeline::Phase::kWeight;
}

bool have_same_stages(const std::vector<ModelChunk>& a, const std::vector<ModelChunk>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const ModelChunk& one, const ModelChunk& other) {
    return one.first_layer == other.first_layer && one.num_layers == other.num_layers &&
           one.embedding == other.embedding && one.output == other.output;
  });
}

/// Time of one microbatch on all stages, both gradients included.
double total_time(const pipeline::StageCosts& costs) {
  double sum = 0;
  for (const auto* times : {&costs.forward, &costs.backward, &costs.weight})
    sum = std::accumulate(times->begin(), times->end(), sum);
  return sum;
}

/// Costs of other stages: by operations, in the time that `known` has for a microbatch.
PlannedCosts costs_scaled_to(const PlannedCosts& known, PlannedCosts costs) {
  const double scale = total_time(known.costs) / total_time(costs.costs);
  for (auto* times : {&costs.costs.forward, &costs.costs.backward, &costs.costs.weight}) {
    for (double& time : *times) time *= scale;
  }
  const auto& transfer = known.costs.transfer;
  const auto hops = static_cast<double>(std::max<std::size_t>(1, transfer.size() - 1));
  const double mean = std::accumulate(transfer.begin(), transfer.end() - 1, 0.0) / hops;
  costs.costs.transfer.assign(costs.costs.transfer.size(), mean);
  return costs;
}

/// Model chunks of a rank under the schedule `name`, for a configuration that has `now`.
std::int64_t chunks_under(const std::string& name, std::int64_t now) {
  if (name == "interleaved") return std::max<std::int64_t>(2, now);
  return name == "zbv" || name == "dualpipev" ? 2 : 1;
}

/// The configuration under another schedule; empty, with the reason in `refusal`, if it cannot be.
std::optional<ResolvedConfig> configured_for(const ResolvedConfig& resolved, const comm::Mesh& mesh,
                                             OtherSchedule& other) {
  const std::int64_t now = config::num_model_chunks(resolved.config.model);
  ResolvedConfig changed = resolved;
  ModelConfig& model = changed.config.model;
  if (model.pipeline_model_parallel_layout && other.num_chunks != now) {
    other.refusal = fmt::format("model.pipeline_model_parallel_layout has {} chunk{} a rank, not {}", now,
                                now == 1 ? "" : "s", other.num_chunks);
    return std::nullopt;
  }
  model.pipeline_schedule = other.name;
  model.virtual_pipeline_model_parallel_size =
      other.num_chunks > 1 ? std::optional<std::int64_t>(other.num_chunks) : std::nullopt;
  const auto problems = config::validate(changed, mesh.world_size(), config::Purpose::kPlan);
  if (problems.empty()) return changed;
  other.refusal = problems.front().message;
  return std::nullopt;
}

OtherSchedule try_schedule(const std::string& name, const ResolvedConfig& resolved, const comm::Mesh& mesh,
                           const PipelinePlan& plan) {
  const ModelConfig& model = resolved.config.model;
  OtherSchedule other;
  other.name = name;
  other.is_planned = name == config::pipeline_schedule_or_default(model);
  other.num_chunks =
      other.is_planned ? plan.timeline.schedule.num_chunks : chunks_under(name, config::num_model_chunks(model));
  const auto changed = other.is_planned ? std::optional(resolved) : configured_for(resolved, mesh, other);
  if (!changed) return other;
  try {
    const pipeline::Schedule schedule = planned_schedule(changed->config, mesh);
    const std::vector<ModelChunk> chunks = model_chunks(changed->config.model);
    PlannedCosts costs = costs_from_flops(changed->config, chunks, defers_weights(schedule));
    other.has_planned_stages = have_same_stages(chunks, plan.chunks);
    if (other.has_planned_stages) {
      auto bytes = std::move(costs.costs);
      costs = plan.costs;
      costs.costs.activation_bytes = std::move(bytes.activation_bytes);
      costs.costs.weight_bytes = std::move(bytes.weight_bytes);
    } else {
      costs = costs_scaled_to(plan.costs, std::move(costs));
    }
    const pipeline::Timeline timeline = pipeline::simulate(schedule, costs.costs);
    other.bubble = timeline.bubble;
    other.span = timeline.span;
    other.peak_bytes = timeline.peak_bytes;
    for (const auto& rank : timeline.ranks) other.peak_in_flight = std::max(other.peak_in_flight, rank.peak_in_flight);
  } catch (const base::UserError& error) {
    other.refusal = error.parts().what;
  }
  return other;
}

std::vector<RankTransfers> count_transfers(const pipeline::Schedule& schedule, double bytes) {
  std::vector<RankTransfers> ranks(static_cast<std::size_t>(schedule.num_ranks));
  for (const pipeline::Transfer& transfer : pipeline::transfers(schedule)) {
    RankTransfers& from = ranks[static_cast<std::size_t>(transfer.from.rank)];
    RankTransfers& to = ranks[static_cast<std::size_t>(transfer.to.rank)];
    ++from.num_sent;
    from.sent_bytes += bytes;
    ++to.num_received;
    to.received_bytes += bytes;
  }
  return ranks;
}

}  // namespace

pipeline::Schedule planned_schedule(const config::RunConfig& config, const comm::Mesh& mesh) {
  return pipeline::schedule_of(config.model, static_cast<int>(estimate_setup(config, mesh).num_microbatches));
}

PipelinePlan plan_pipeline(const ResolvedConfig& resolved, const comm::Mesh& mesh,
                           const std::optional<std::filesystem::path>& costs_run) {
  const config::RunConfig& config = resolved.config;
  pipeline::check_microbatch_counts(config, mesh.size(comm::MeshDim::kData));
  const pipeline::Schedule schedule = planned_schedule(config, mesh);
  const bool defers = defers_weights(schedule);
  PipelinePlan plan;
  plan.chunks = model_chunks(config.model);
  plan.costs = costs_run ? costs_from_run(config, plan.chunks, defers, *costs_run)
                         : costs_from_flops(config, plan.chunks, defers);
  plan.timeline = pipeline::simulate(schedule, plan.costs.costs);
  plan.boundary_bytes = boundary_bytes(config);
  plan.transfers = count_transfers(schedule, plan.boundary_bytes);
  if (schedule.num_ranks == 1) return plan;
  for (const std::string& name : pipeline::schedule_names())
    plan.schedules.push_back(try_schedule(name, resolved, mesh, plan));
  return plan;
}

std::string render_timeline_text(const PipelinePlan& plan) {
  const pipeline::Schedule& schedule = plan.timeline.schedule;
  return fmt::format("{}: {} pipeline rank{}, {} chunk{} each, {} microbatch{}\nTimes: {}.\n\n{}\n{}", schedule.name,
                     schedule.num_ranks, schedule.num_ranks == 1 ? "" : "s", schedule.num_chunks,
                     schedule.num_chunks == 1 ? "" : "s", schedule.num_microbatches,
                     schedule.num_microbatches == 1 ? "" : "es", plan.costs.source,
                     pipeline::render_text(plan.timeline, 100, plan.costs.time_unit), pipeline::render_text(schedule));
}

std::string render_timeline_svg(const PipelinePlan& plan) {
  return pipeline::render_svg(plan.timeline, plan.costs.time_unit);
}

}  // namespace pharos::plan
