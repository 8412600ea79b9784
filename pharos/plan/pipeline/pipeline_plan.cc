#include "pharos/plan/pipeline/pipeline_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/validate/validate.h"
#include "pharos/pipeline/render.h"
#include "pharos/pipeline/report/what_if.h"
#include "pharos/pipeline/run_schedule.h"
#include "pharos/pipeline/transfers.h"
#include "pharos/plan/estimate_setup.h"
#include "pharos/plan/pipeline/boundary_tensors.h"

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

std::vector<int> layers_of(const std::vector<ModelChunk>& chunks) {
  std::vector<int> layers;
  for (const ModelChunk& chunk : chunks) layers.push_back(static_cast<int>(chunk.num_layers));
  return layers;
}

/// Replaces the simulator's peaks, which know of what stages keep alone.
void find_peaks(pipeline::Timeline& timeline, const pipeline::StageCosts& costs, double boundary_bytes) {
  const pipeline::Phase last = pipeline::last_phase(timeline.schedule);
  timeline.peak_bytes = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    pipeline::RankTimeline& line = timeline.ranks[rank];
    const std::vector<int> tensors = boundary_tensors(timeline.schedule, static_cast<int>(rank));
    double kept = 0;
    line.peak_bytes = 0;
    for (std::size_t position = 0; position < line.actions.size(); ++position) {
      const auto stage = static_cast<std::size_t>(line.actions[position].stage);
      const pipeline::Phase phase = line.actions[position].action.phase;
      if (phase == pipeline::Phase::kForward) kept += costs.activation_bytes[stage];
      if (phase == pipeline::Phase::kBackward) kept -= costs.activation_bytes[stage];
      if (phase == pipeline::Phase::kBackward && last == pipeline::Phase::kWeight) kept += costs.weight_bytes[stage];
      if (phase == pipeline::Phase::kWeight) kept -= costs.weight_bytes[stage];
      line.peak_bytes = std::max(line.peak_bytes, kept + tensors[position] * boundary_bytes);
    }
    timeline.peak_bytes = std::max(timeline.peak_bytes, line.peak_bytes);
  }
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
    pipeline::StageCosts costs = costs_from_flops(changed->config, chunks, defers_weights(schedule)).costs;
    other.has_planned_stages = have_same_stages(chunks, plan.chunks);
    if (plan.has_measured_times) {
      pipeline::StageCosts measured = plan.costs.costs;
      if (!other.has_planned_stages) measured = pipeline::restaged(measured, layers_of(plan.chunks), layers_of(chunks));
      measured.activation_bytes = std::move(costs.activation_bytes);
      measured.weight_bytes = std::move(costs.weight_bytes);
      costs = std::move(measured);
    }
    pipeline::Timeline timeline = pipeline::simulate(schedule, costs);
    find_peaks(timeline, costs, plan.boundary_bytes);
    other.bubble = timeline.bubble;
    other.span = timeline.span;
    other.peak_bytes = timeline.peak_bytes;
    other.peak_rank_shares = pipeline::peak_rank_shares(timeline);
  } catch (const base::UserError& error) {
    const base::UserError::Parts& parts = error.parts();
    other.refusal = parts.why.empty() ? parts.what : parts.what + " " + parts.why;
  }
  return other;
}

/// Where the bubble comes from, in the way of the report of a run (docs/bubble.md).
void explain_bubble(PipelinePlan& plan) {
  const pipeline::Timeline& timeline = plan.timeline;
  pipeline::StageCosts costs = plan.costs.costs;
  std::fill(costs.transfer.begin(), costs.transfer.end(), 0);
  const double uneven = pipeline::simulate(timeline.schedule, costs).bubble;
  for (auto* times : {&costs.forward, &costs.backward, &costs.weight}) {
    const double mean = std::accumulate(times->begin(), times->end(), 0.0) / static_cast<double>(times->size());
    std::fill(times->begin(), times->end(), mean);
  }
  plan.bubble_schedule = pipeline::simulate(timeline.schedule, costs).bubble;
  plan.bubble_imbalance = uneven - plan.bubble_schedule;
  plan.bubble_transfers = timeline.bubble - uneven;
  const auto [least, most] = std::minmax_element(
      timeline.ranks.begin(), timeline.ranks.end(),
      [](const pipeline::RankTimeline& left, const pipeline::RankTimeline& right) { return left.busy < right.busy; });
  constexpr double kRounding = 1e-6;
  if (most->busy > least->busy * (1 + kRounding)) plan.busiest_rank = static_cast<int>(most - timeline.ranks.begin());
}

/// The split of layers that pipeline::better_split() finds, if the configuration can have it.
std::optional<BetterLayout> find_better_layout(const ResolvedConfig& resolved, const comm::Mesh& mesh,
                                               const PipelinePlan& plan) {
  const pipeline::Schedule& schedule = plan.timeline.schedule;
  const auto split = pipeline::better_split(schedule, plan.costs.costs, layers_of(plan.chunks));
  if (!split) return std::nullopt;
  BetterLayout better{.arguments = split->arguments, .span = split->span, .bubble = split->bubble};
  ResolvedConfig changed = resolved;
  ModelConfig& model = changed.config.model;
  const std::size_t quote = better.arguments.find('"') + 1;  // 'model.pipeline_model_parallel_layout="Et*2|t*2L"'
  better.arguments.insert(better.arguments.find('L', quote),
                          std::string(static_cast<std::size_t>(model.mtp_num_layers.value_or(0)), 'm'));
  model.pipeline_model_parallel_layout = better.arguments.substr(quote, better.arguments.rfind('"') - quote);
  const auto clear = [&](auto& field, const char* name, const char* value) {
    if (!field) return;
    field = {};
    better.arguments += fmt::format(" model.{}={}", name, value);
  };
  clear(model.num_layers_in_first_pipeline_stage, "num_layers_in_first_pipeline_stage", "null");
  clear(model.num_layers_in_last_pipeline_stage, "num_layers_in_last_pipeline_stage", "null");
  clear(model.account_for_embedding_in_pipeline_split, "account_for_embedding_in_pipeline_split", "false");
  clear(model.account_for_loss_in_pipeline_split, "account_for_loss_in_pipeline_split", "false");
  if (!config::validate(changed, mesh.world_size(), config::Purpose::kPlan).empty()) return std::nullopt;
  if (plan.has_measured_times) return better;
  const PlannedCosts costs = costs_from_flops(changed.config, model_chunks(model), defers_weights(schedule));
  const pipeline::Timeline timeline = pipeline::simulate(schedule, costs.costs);
  if (timeline.span >= plan.timeline.span) return std::nullopt;
  better.span = timeline.span;
  better.bubble = timeline.bubble;
  return better;
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
  find_peaks(plan.timeline, plan.costs.costs, plan.boundary_bytes);
  plan.transfers = count_transfers(schedule, plan.boundary_bytes);
  if (schedule.num_ranks == 1) return plan;
  plan.has_measured_times = costs_run.has_value();
  explain_bubble(plan);
  plan.better_layout = find_better_layout(resolved, mesh, plan);
  for (const std::string& name : pipeline::schedule_names())
    plan.schedules.push_back(try_schedule(name, resolved, mesh, plan));
  std::stable_sort(plan.schedules.begin(), plan.schedules.end(),
                   [](const OtherSchedule& left, const OtherSchedule& right) {
                     return std::pair(!left.refusal.empty(), left.span) < std::pair(!right.refusal.empty(), right.span);
                   });
  return plan;
}

double PipelinePlan::ideal_span() const { return (1 - timeline.bubble) * timeline.span; }

std::string bubble_causes(const PipelinePlan& plan) {
  // In percent, never "-0.0".
  const auto percent = [](double fraction) { return std::round(1000 * fraction) / 10 + 0.0; };
  std::string text = fmt::format("{:.1f} % schedule, {:+.1f} imbalance", percent(plan.bubble_schedule),
                                 percent(plan.bubble_imbalance));
  if (percent(plan.bubble_transfers) != 0) text += fmt::format(", {:+.1f} transfers", percent(plan.bubble_transfers));
  return text + (plan.busiest_rank ? fmt::format("; rank {} is the busiest", *plan.busiest_rank)
                                   : "; all ranks have as much to do");
}

std::string render_timeline_text(const PipelinePlan& plan) {
  const pipeline::Schedule& schedule = plan.timeline.schedule;
  return fmt::format(
      "{}: {} pipeline rank{}, {} chunk{} each, {} microbatch{}\nTimes: {}.\n\n{}Of the bubble: {}.\n\n{}",
      schedule.name, schedule.num_ranks, schedule.num_ranks == 1 ? "" : "s", schedule.num_chunks,
      schedule.num_chunks == 1 ? "" : "s", schedule.num_microbatches, schedule.num_microbatches == 1 ? "" : "es",
      plan.costs.source, pipeline::render_text(plan.timeline, 100, plan.costs.time_unit), bubble_causes(plan),
      pipeline::render_text(schedule));
}

std::string render_timeline_svg(const PipelinePlan& plan) {
  return pipeline::render_svg(plan.timeline, plan.costs.time_unit);
}

}  // namespace pharos::plan
