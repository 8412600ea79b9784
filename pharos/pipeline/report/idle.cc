#include "pharos/pipeline/report/idle.h"

#include <algorithm>

#include "pharos/pipeline/dependencies.h"

namespace pharos::pipeline {
namespace {

/// When each action ended.
class Ends {
 public:
  explicit Ends(const Timeline& timeline)
      : num_stages_(timeline.schedule.num_ranks * timeline.schedule.num_chunks),
        num_microbatches_(timeline.schedule.num_microbatches),
        ends_(static_cast<std::size_t>(kNumPhases) * num_stages_ * num_microbatches_) {
    for (const RankTimeline& line : timeline.ranks) {
      for (const TimedAction& timed : line.actions)
        ends_[index(timed.action.phase, timed.stage, timed.action.microbatch)] = timed.end;
    }
  }
  double of(Phase phase, int stage, int microbatch) const { return ends_[index(phase, stage, microbatch)]; }

 private:
  std::size_t index(Phase phase, int stage, int microbatch) const {
    return (static_cast<std::size_t>(phase) * num_stages_ + stage) * num_microbatches_ + microbatch;
  }
  int num_stages_, num_microbatches_;
  std::vector<double> ends_;
};

class IdleTimes {
 public:
  explicit IdleTimes(const Timeline& timeline)
      : timeline_(timeline), holders_(stage_holders(timeline.schedule)), ends_(timeline) {}

  std::vector<Idle> of_rank(int rank, const std::vector<double>* asked) {
    idle_.clear();
    double free = 0;
    const auto& actions = timeline_.ranks[rank].actions;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const TimedAction& timed = actions[i];
      if (i == 0) {
        add(IdleReason::kFill, 0, timed.start);
      } else {
        const double from = asked == nullptr ? free : std::max(free, std::min((*asked)[i], timed.start));
        add(IdleReason::kHost, free, from);
        add_wait(rank, timed, from);
      }
      free = timed.end;
    }
    add(IdleReason::kDrain, free, timeline_.span);
    return idle_;
  }

 private:
  /// From `from` on the rank was free for the action.
  void add_wait(int rank, const TimedAction& timed, double from) {
    const auto stage = awaited_stage(timed.action.phase, timed.stage, static_cast<int>(holders_.size()));
    if (!stage || holders_[*stage].rank == rank) return add(IdleReason::kHost, from, timed.start);
    const double computed = ends_.of(timed.action.phase, *stage, timed.action.microbatch);
    const double ended = std::max(from, std::min(computed, timed.start));
    add(IdleReason::kStage, from, ended, *stage);
    add(IdleReason::kTransfer, ended, timed.start, *stage);
  }

  void add(IdleReason reason, double start, double end, int stage = -1) {
    if (end > start) idle_.push_back({reason, start, end, stage});
  }

  const Timeline& timeline_;
  std::vector<StageHolder> holders_;
  Ends ends_;
  std::vector<Idle> idle_;
};

}  // namespace

std::vector<std::vector<Idle>> idle_times(const Timeline& timeline, const std::vector<std::vector<double>>* asked) {
  IdleTimes times(timeline);
  std::vector<std::vector<Idle>> idle;
  for (int rank = 0; rank < timeline.schedule.num_ranks; ++rank)
    idle.push_back(times.of_rank(rank, asked == nullptr ? nullptr : &(*asked)[rank]));
  return idle;
}

std::optional<int> busiest_rank(const Timeline& timeline) {
  constexpr double kLeastAboveMean = 1.01;
  double sum = 0;
  std::size_t busiest = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    sum += timeline.ranks[rank].busy;
    if (timeline.ranks[rank].busy > timeline.ranks[busiest].busy) busiest = rank;
  }
  const double mean = sum / static_cast<double>(timeline.ranks.size());
  if (timeline.ranks[busiest].busy <= kLeastAboveMean * mean) return std::nullopt;
  return static_cast<int>(busiest);
}

}  // namespace pharos::pipeline
