#include "pharos/pipeline/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/pipeline/dependencies.h"

namespace pharos::pipeline {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

void require_costs(const StageCosts& costs, std::size_t num_stages) {
  for (const auto* values : {&costs.forward, &costs.backward, &costs.weight, &costs.transfer, &costs.activation_bytes,
                             &costs.weight_bytes}) {
    PHAROS_CHECK(values->size() == num_stages, fmt::format("costs of {} stages for {}", values->size(), num_stages));
    for (const double value : *values)
      PHAROS_CHECK(std::isfinite(value) && value >= 0, fmt::format("a cost is {}", value));
  }
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const StageCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        holders_(stage_holders(schedule)),
        backward_has_weight_(last_phase(schedule) != Phase::kWeight),
        end_(kNumPhases * holders_.size() * static_cast<std::size_t>(schedule.num_microbatches), kNotYet),
        ranks_(schedule.num_ranks) {}

  std::vector<RankTimeline> run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
        while (advance(rank)) progress = true;
      }
    }
    return std::move(ranks_);
  }

 private:
  /// Times the next action of `rank`, unless it is at its end or waits for one that has no time yet.
  bool advance(int rank) {
    RankTimeline& line = ranks_[rank];
    if (line.actions.size() == schedule_.actions[rank].size()) return false;
    const Action& action = schedule_.actions[rank][line.actions.size()];
    const int stage = schedule_.stage_of[rank][action.chunk];
    const double free = line.actions.empty() ? 0 : line.actions.back().end;
    double computed = 0, arrived = 0;
    if (const auto awaited = awaited_stage(action.phase, stage, static_cast<int>(holders_.size()))) {
      computed = end(action.phase, *awaited, action.microbatch);
      if (computed == kNotYet) return false;
      arrived = computed + (holders_[*awaited].rank == rank ? 0 : costs_.transfer[std::min(stage, *awaited)]);
    }
    const double start = std::max(free, arrived);
    if (line.actions.empty()) {
      line.idle_before = start;
    } else {
      const double waited_for_stage = std::max(0.0, computed - free);
      line.idle_stage += waited_for_stage;
      line.idle_transfer += (start - free) - waited_for_stage;
    }
    const double duration = duration_of(action.phase, stage);
    line.busy += duration;
    line.actions.push_back({action, stage, start, start + duration});
    end(action.phase, stage, action.microbatch) = start + duration;
    return true;
  }

  double duration_of(Phase phase, int stage) const {
    switch (phase) {
      case Phase::kForward:
        return costs_.forward[stage];
      case Phase::kBackward:
        return costs_.backward[stage] + (backward_has_weight_ ? costs_.weight[stage] : 0);
      case Phase::kWeight:
        break;
    }
    return costs_.weight[stage];
  }

  double& end(Phase phase, int stage, int microbatch) {
    const std::size_t row = static_cast<std::size_t>(phase) * holders_.size() + static_cast<std::size_t>(stage);
    return end_[row * static_cast<std::size_t>(schedule_.num_microbatches) + static_cast<std::size_t>(microbatch)];
  }

  const Schedule& schedule_;
  const StageCosts& costs_;
  std::vector<StageHolder> holders_;
  bool backward_has_weight_;
  std::vector<double> end_;  ///< [phase, stage, microbatch]
  std::vector<RankTimeline> ranks_;
};

/// Actions of a rank follow one another, so the order alone says what is held together.
double peak_bytes(const RankTimeline& line, const StageCosts& costs, Phase last) {
  double bytes = 0, peak = 0;
  for (const TimedAction& timed : line.actions) {
    const double all = costs.activation_bytes[timed.stage], kept = costs.weight_bytes[timed.stage];
    const Phase phase = timed.action.phase;
    if (phase == Phase::kForward) peak = std::max(peak, bytes += all);
    if (phase == last) {
      bytes -= phase == Phase::kWeight ? kept : all;
    } else if (phase == Phase::kBackward) {
      peak = std::max(peak, bytes += kept - all);
    }
  }
  return peak;
}

}  // namespace

StageCosts even_costs(int num_stages, double forward, double backward, double weight, double transfer, double bytes) {
  const auto every = [num_stages](double value) { return std::vector<double>(num_stages, value); };
  return {.forward = every(forward),
          .backward = every(backward),
          .weight = every(weight),
          .transfer = every(transfer),
          .activation_bytes = every(bytes),
          .weight_bytes = every(bytes)};
}

Timeline simulate(const Schedule& schedule, const StageCosts& costs) {
  const auto faults = check(schedule);
  PHAROS_CHECK(faults.empty(), "schedule " + schedule.name + " is not sound: " + faults.front());
  require_costs(costs, static_cast<std::size_t>(schedule.num_ranks) * schedule.num_chunks);
  Timeline timeline{.schedule = schedule, .ranks = Simulator(schedule, costs).run()};
  for (const RankTimeline& line : timeline.ranks) timeline.span = std::max(timeline.span, line.actions.back().end);
  const std::vector<int> peaks = peak_in_flight(schedule);
  double idle = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    RankTimeline& line = timeline.ranks[rank];
    line.idle_after = timeline.span - line.actions.back().end;
    line.bubble = timeline.span > 0 ? line.idle() / timeline.span : 0;
    line.peak_in_flight = peaks[rank];
    line.peak_bytes = peak_bytes(line, costs, last_phase(schedule));
    timeline.peak_bytes = std::max(timeline.peak_bytes, line.peak_bytes);
    idle += line.idle();
  }
  timeline.bubble = timeline.span > 0 ? idle / (timeline.span * schedule.num_ranks) : 0;
  return timeline;
}

}  // namespace pharos::pipeline
