#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "pharos/base/error.h"
#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/report/measured_timeline.h"
#include "pharos/pipeline/transfers.h"

namespace pharos::pipeline {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// What transfers of one direction of a hop took.
struct Samples {
  std::vector<double> awaited;  ///< the receiver waited already when the sender ended
  std::vector<double> rest;     ///< what else of a transfer was waited for
};

/// Of both directions; nothing without transfers.
std::optional<double> hop_time(const std::array<Samples, 2>& directions) {
  for (const auto kind : {&Samples::awaited, &Samples::rest}) {
    std::vector<double> times;
    for (const Samples& direction : directions) {
      if (!(direction.*kind).empty()) times.push_back(median(direction.*kind));
    }
    if (!times.empty()) return std::max(0.0, mean(times));
  }
  return std::nullopt;
}

/// [stage] -> from this stage to the next, within ranks too; see costs_of().
std::vector<double> transfer_costs(const std::vector<StepTimeline>& steps, int num_stages) {
  std::vector<std::array<Samples, 2>> samples(static_cast<std::size_t>(num_stages));  // [hop][phase]
  const std::vector<Transfer> all = transfers(steps.front().timeline.schedule);
  for (const StepTimeline& step : steps) {
    for (const Transfer& transfer : all) {
      const TimedAction& from = step.timeline.ranks[transfer.from.rank].actions[transfer.from.position];
      const TimedAction& to = step.timeline.ranks[transfer.to.rank].actions[transfer.to.position];
      const double asked = step.asked[transfer.to.rank][transfer.to.position];
      Samples& direction = samples[static_cast<std::size_t>(std::min(from.stage, to.stage))]
                                  [static_cast<std::size_t>(from.action.phase)];
      (asked <= from.end ? direction.awaited : direction.rest).push_back(to.start - std::max(from.end, asked));
    }
  }
  std::vector<std::optional<double>> hops;
  std::vector<double> measured;
  for (const auto& directions : samples) {
    hops.push_back(hop_time(directions));
    if (hops.back()) measured.push_back(*hops.back());
  }
  std::vector<double> costs;
  for (const auto& hop : hops) costs.push_back(hop.value_or(mean(measured)));
  return costs;
}

}  // namespace

StageCosts costs_of(const std::vector<StepTimeline>& steps) {
  PHAROS_CHECK(!steps.empty(), "costs of no step");
  const Schedule& schedule = steps.front().timeline.schedule;
  const int num_stages = schedule.num_ranks * schedule.num_chunks;
  std::vector<std::array<std::vector<double>, kNumPhases>> times(static_cast<std::size_t>(num_stages));
  for (const StepTimeline& step : steps) {
    for (const RankTimeline& line : step.timeline.ranks) {
      for (const TimedAction& timed : line.actions)
        times[timed.stage][static_cast<std::size_t>(timed.action.phase)].push_back(timed.end - timed.start);
    }
  }
  const bool has_weight = last_phase(schedule) == Phase::kWeight;
  const auto holders = stage_holders(schedule);
  const std::vector<int> peaks = peak_in_flight(schedule);
  StageCosts costs;
  for (int stage = 0; stage < num_stages; ++stage) {
    const auto& [forward, backward, weight] = times[static_cast<std::size_t>(stage)];
    costs.forward.push_back(median(forward));
    costs.backward.push_back(median(backward) / (has_weight ? 1 : 2));
    costs.weight.push_back(has_weight ? median(weight) : costs.backward.back());
    const int rank = holders[stage].rank;
    double bytes = 0;
    for (const StepTimeline& step : steps) bytes = std::max(bytes, step.timeline.ranks[rank].peak_bytes);
    costs.activation_bytes.push_back(bytes / std::max(1, peaks[rank]));
  }
  costs.weight_bytes = costs.activation_bytes;
  costs.transfer = transfer_costs(steps, num_stages);
  return costs;
}

StageCosts costs_of(const std::vector<MeasuredStep>& steps) {
  const std::vector<StepTimeline> timelines = typical_steps(step_timelines(steps));
  if (timelines.empty()) {
    throw base::UserError({.what = "No step of a pipeline was measured on all its ranks.",
                           .why = "The times of the stages are taken from such steps.",
                           .fix = "Take a run with pipeline stages that did at least one step."});
  }
  return costs_of(timelines);
}

}  // namespace pharos::pipeline
