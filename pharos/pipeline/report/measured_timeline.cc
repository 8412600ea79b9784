#include "pharos/pipeline/report/measured_timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/pipeline/report/clock_offsets.h"
#include "pharos/pipeline/transfers.h"

namespace pharos::pipeline {
namespace {

constexpr double kMillisecond = 1e6;  ///< in nanoseconds

bool has_shape_of(const MeasuredStep& step, const MeasuredStep& other) {
  return step.schedule == other.schedule && step.num_ranks == other.num_ranks && step.num_chunks == other.num_chunks &&
         step.num_microbatches == other.num_microbatches;
}

/// The ranks of a step in order, if all are there.
std::optional<std::vector<const MeasuredStep*>> whole_step(const std::vector<const MeasuredStep*>& found) {
  // What a run with another layout left of the same step is older.
  const MeasuredStep& newest =
      **std::max_element(found.begin(), found.end(), [](const MeasuredStep* left, const MeasuredStep* right) {
        return left->actions.front().asked_ns < right->actions.front().asked_ns;
      });
  if (static_cast<std::size_t>(newest.num_ranks) > found.size()) return std::nullopt;
  std::vector<const MeasuredStep*> ranks(static_cast<std::size_t>(newest.num_ranks), nullptr);
  for (const MeasuredStep* step : found) {
    if (has_shape_of(*step, newest)) ranks.at(static_cast<std::size_t>(step->rank)) = step;
  }
  if (std::find(ranks.begin(), ranks.end(), nullptr) != ranks.end()) return std::nullopt;
  return ranks;
}

Schedule schedule_of_step(const std::vector<const MeasuredStep*>& ranks) {
  Schedule schedule;
  schedule.name = ranks.front()->schedule;
  schedule.num_ranks = ranks.front()->num_ranks;
  schedule.num_chunks = ranks.front()->num_chunks;
  schedule.num_microbatches = ranks.front()->num_microbatches;
  for (const MeasuredStep* step : ranks) {
    schedule.stage_of.push_back(step->stages);
    auto& actions = schedule.actions.emplace_back();
    for (const MeasuredAction& measured : step->actions) actions.push_back(measured.action);
  }
  return schedule;
}

/// Sums of the rank, once actions and span are known.
void complete_rank(RankTimeline& line, const std::vector<Idle>& idle, double span) {
  for (const Idle& time : idle) {
    double& sum = time.reason == IdleReason::kFill       ? line.idle_before
                  : time.reason == IdleReason::kTransfer ? line.idle_transfer
                  : time.reason == IdleReason::kDrain    ? line.idle_after
                                                         : line.idle_stage;
    sum += time.end - time.start;
  }
  line.bubble = span > 0 ? (span - line.busy) / span : 0;
}

StepTimeline timeline_of(const std::vector<const MeasuredStep*>& ranks, Schedule schedule) {
  StepTimeline result;
  result.step = ranks.front()->step;
  result.clock_offset_ns = clock_offsets(schedule, ranks);
  std::int64_t begin_ns = std::numeric_limits<std::int64_t>::max();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    begin_ns = std::min(begin_ns, ranks[rank]->actions.front().start_ns - result.clock_offset_ns[rank]);
  Timeline& timeline = result.timeline;
  const std::vector<int> peaks = peak_in_flight(schedule);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    RankTimeline& line = timeline.ranks.emplace_back();
    auto& asked = result.asked.emplace_back();
    const auto time = [&](std::int64_t ns) {
      return static_cast<double>(ns - result.clock_offset_ns[rank] - begin_ns) / kMillisecond;
    };
    for (const MeasuredAction& measured : ranks[rank]->actions) {
      asked.push_back(time(measured.asked_ns));
      line.actions.push_back({measured.action, ranks[rank]->stages[measured.action.chunk], time(measured.start_ns),
                              time(measured.end_ns)});
      line.busy += line.actions.back().end - line.actions.back().start;
    }
    line.peak_in_flight = peaks[rank];
    line.peak_bytes = static_cast<double>(ranks[rank]->peak_activation_bytes);
    timeline.span = std::max(timeline.span, line.actions.back().end);
    timeline.peak_bytes = std::max(timeline.peak_bytes, line.peak_bytes);
  }
  timeline.schedule = std::move(schedule);
  result.idle = idle_times(timeline, &result.asked);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    complete_rank(timeline.ranks[rank], result.idle[rank], timeline.span);
    timeline.bubble += timeline.ranks[rank].bubble / static_cast<double>(ranks.size());
  }
  return result;
}

}  // namespace

std::vector<StepTimeline> step_timelines(const std::vector<MeasuredStep>& steps, std::int64_t replica) {
  std::map<std::int64_t, std::vector<const MeasuredStep*>> by_step;
  for (const MeasuredStep& step : steps) {
    if (step.replica == replica && !step.actions.empty()) by_step[step.step].push_back(&step);
  }
  std::vector<StepTimeline> timelines;
  for (const auto& [number, found] : by_step) {
    const auto ranks = whole_step(found);
    if (!ranks) continue;
    Schedule schedule = schedule_of_step(*ranks);
    if (check(schedule).empty()) timelines.push_back(timeline_of(*ranks, std::move(schedule)));
  }
  return timelines;
}

std::vector<StepTimeline> typical_steps(std::vector<StepTimeline> steps) {
  if (steps.size() < 2) return steps;
  const Schedule last = steps.back().timeline.schedule;
  const auto is_like_last = [&last](const StepTimeline& step) {
    const Schedule& schedule = step.timeline.schedule;
    return schedule.name == last.name && schedule.stage_of == last.stage_of && schedule.actions == last.actions;
  };
  steps.erase(steps.begin());
  std::erase_if(steps, [&](const StepTimeline& step) { return !is_like_last(step); });
  return steps;
}

}  // namespace pharos::pipeline
