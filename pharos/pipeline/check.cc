#include <fmt/format.h>

#include <algorithm>

#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {
namespace {

std::string describe(const Action& action) {
  return fmt::format("{}(microbatch {}, chunk {})", "FBW"[static_cast<int>(action.phase)], action.microbatch,
                     action.chunk);
}

/// Faults of the shape: table sizes, and stages that are not each held once.
std::vector<std::string> shape_faults(const Schedule& schedule) {
  std::vector<std::string> faults;
  const auto num_ranks = static_cast<std::size_t>(std::max(0, schedule.num_ranks));
  if (schedule.num_ranks < 1 || schedule.num_chunks < 1 || schedule.num_microbatches < 1) {
    faults.push_back(fmt::format("{} ranks, {} chunks and {} microbatches: each must be at least 1", schedule.num_ranks,
                                 schedule.num_chunks, schedule.num_microbatches));
  }
  if (schedule.stage_of.size() != num_ranks || schedule.actions.size() != num_ranks) {
    faults.push_back(fmt::format("{} ranks, but stages of {} and actions of {}", num_ranks, schedule.stage_of.size(),
                                 schedule.actions.size()));
  }
  if (!faults.empty()) return faults;
  std::vector<int> holders(num_ranks * schedule.num_chunks, 0);
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (schedule.stage_of[rank].size() != static_cast<std::size_t>(schedule.num_chunks)) {
      faults.push_back(fmt::format("rank {} has stages of {} chunks, not {}", rank, schedule.stage_of[rank].size(),
                                   schedule.num_chunks));
    }
    for (const int stage : schedule.stage_of[rank]) {
      if (stage < 0 || stage >= static_cast<int>(holders.size())) {
        faults.push_back(fmt::format("rank {} holds stage {}, outside 0..{}", rank, stage, holders.size() - 1));
      } else if (++holders[stage] == 2) {
        faults.push_back(fmt::format("stage {} is held twice", stage));
      }
    }
  }
  return faults;
}

bool has_phase(const Schedule& schedule, Phase phase) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [phase](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(), [phase](const Action& action) { return action.phase == phase; });
  });
}

/// Faults within one rank's list: actions outside the shape, doubled, missing, or before the one they need.
void append_list_faults(const Schedule& schedule, int rank, std::vector<std::string>& faults) {
  const auto num_slots = static_cast<std::size_t>(schedule.num_microbatches) * schedule.num_chunks;
  std::vector<std::vector<int>> count(kNumPhases, std::vector<int>(num_slots, 0));
  for (const Action& action : schedule.actions[rank]) {
    if (action.microbatch < 0 || action.microbatch >= schedule.num_microbatches || action.chunk < 0 ||
        action.chunk >= schedule.num_chunks) {
      faults.push_back(fmt::format("rank {}: {} is outside the schedule", rank, describe(action)));
      continue;
    }
    const auto slot = static_cast<std::size_t>(action.chunk) * schedule.num_microbatches + action.microbatch;
    const int phase = static_cast<int>(action.phase);
    if (++count[phase][slot] == 2) faults.push_back(fmt::format("rank {}: {} is doubled", rank, describe(action)));
    if (phase > 0 && count[phase - 1][slot] == 0) {
      const Action before{static_cast<Phase>(phase - 1), action.microbatch, action.chunk};
      faults.push_back(fmt::format("rank {}: {} is not preceded by {}", rank, describe(action), describe(before)));
    }
  }
  for (int phase = 0; phase < kNumPhases; ++phase) {
    if (phase > 0 && !has_phase(schedule, static_cast<Phase>(phase))) continue;
    for (std::size_t slot = 0; slot < num_slots; ++slot) {
      if (count[phase][slot] > 0) continue;
      const Action missing{static_cast<Phase>(phase), static_cast<int>(slot) % schedule.num_microbatches,
                           static_cast<int>(slot) / schedule.num_microbatches};
      faults.push_back(fmt::format("rank {}: {} is missing", rank, describe(missing)));
    }
  }
}

/// Runs all ranks' lists against each other: forwards wait for the stage before, backwards for the stage behind.
class DryRun {
 public:
  explicit DryRun(const Schedule& schedule)
      : schedule_(schedule),
        num_stages_(schedule.num_ranks * schedule.num_chunks),
        done_(kNumPhases, std::vector<bool>(static_cast<std::size_t>(num_stages_) * schedule.num_microbatches, false)),
        next_(schedule.num_ranks, 0) {}

  /// One fault per rank that cannot finish.
  std::vector<std::string> run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < schedule_.num_ranks; ++rank) progress |= advance(rank);
    }
    std::vector<std::string> faults;
    for (int rank = 0; rank < schedule_.num_ranks; ++rank) {
      if (is_finished(rank)) continue;
      const Action& action = schedule_.actions[rank][next_[rank]];
      faults.push_back(fmt::format("rank {}: {} waits for ever on {} of stage {}", rank, describe(action),
                                   action.phase == Phase::kForward ? "the forward" : "the backward",
                                   *awaited(rank, action)));
    }
    return faults;
  }

 private:
  bool is_finished(int rank) const { return next_[rank] == schedule_.actions[rank].size(); }

  bool advance(int rank) {
    bool moved = false;
    while (!is_finished(rank)) {
      const Action& action = schedule_.actions[rank][next_[rank]];
      const auto stage = awaited(rank, action);
      const int phase = static_cast<int>(action.phase);
      if (stage && !done_[phase][index(*stage, action.microbatch)]) return moved;
      done_[phase][index(schedule_.stage_of[rank][action.chunk], action.microbatch)] = true;
      ++next_[rank];
      moved = true;
    }
    return moved;
  }

  std::optional<int> awaited(int rank, const Action& action) const {
    return awaited_stage(action.phase, schedule_.stage_of[rank][action.chunk], num_stages_);
  }

  std::size_t index(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * schedule_.num_microbatches + microbatch;
  }

  const Schedule& schedule_;
  int num_stages_;
  std::vector<std::vector<bool>> done_;  ///< [phase][stage, microbatch]
  std::vector<std::size_t> next_;        ///< [rank] -> position in its list
};

}  // namespace

std::vector<std::string> check(const Schedule& schedule, std::optional<int> max_in_flight) {
  std::vector<std::string> faults = shape_faults(schedule);
  if (!faults.empty()) return faults;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) append_list_faults(schedule, rank, faults);
  if (!faults.empty()) return faults;
  faults = DryRun(schedule).run();
  if (!max_in_flight) return faults;
  const std::vector<int> peak = peak_in_flight(schedule);
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    if (peak[rank] <= *max_in_flight) continue;
    faults.push_back(
        fmt::format("rank {}: {} chunk activations in flight, more than {}", rank, peak[rank], *max_in_flight));
  }
  return faults;
}

Phase last_phase(const Schedule& schedule) {
  if (has_phase(schedule, Phase::kWeight)) return Phase::kWeight;
  return has_phase(schedule, Phase::kBackward) ? Phase::kBackward : Phase::kForward;
}

std::vector<int> peak_in_flight(const Schedule& schedule) {
  const Phase last = last_phase(schedule);
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int in_flight = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.phase == Phase::kForward) peak = std::max(peak, ++in_flight);
      if (action.phase == last) --in_flight;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

std::string notation(const Action& action) {
  const char phase = "FBW"[static_cast<int>(action.phase)];
  return action.chunk == 0 ? fmt::format("{}{}", phase, action.microbatch)
                           : fmt::format("{}{}.{}", phase, action.microbatch, action.chunk);
}

}  // namespace pharos::pipeline
