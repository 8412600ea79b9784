#include "pharos/pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "pharos/base/error.h"

namespace pharos::pipeline {
namespace {

constexpr int kNumPhases = 3;

/// Schedule of one chunk per rank, rank r holding stage r, without actions.
Schedule straight_schedule(std::string name, int num_ranks, int num_microbatches) {
  PHAROS_CHECK(num_ranks >= 1 && num_microbatches >= 1,
               fmt::format("{} needs a rank and a microbatch, got {} and {}", name, num_ranks, num_microbatches));
  Schedule schedule;
  schedule.name = std::move(name);
  schedule.num_ranks = num_ranks;
  schedule.num_microbatches = num_microbatches;
  schedule.actions.resize(num_ranks);
  for (int rank = 0; rank < num_ranks; ++rank) schedule.stage_of.push_back({rank});
  return schedule;
}

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
class Simulation {
 public:
  explicit Simulation(const Schedule& schedule)
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
                                   *awaited_stage(rank, action)));
    }
    return faults;
  }

 private:
  bool is_finished(int rank) const { return next_[rank] == schedule_.actions[rank].size(); }

  bool advance(int rank) {
    bool moved = false;
    while (!is_finished(rank)) {
      const Action& action = schedule_.actions[rank][next_[rank]];
      const auto awaited = awaited_stage(rank, action);
      const int phase = static_cast<int>(action.phase);
      if (awaited && !done_[phase][index(*awaited, action.microbatch)]) return moved;
      done_[phase][index(schedule_.stage_of[rank][action.chunk], action.microbatch)] = true;
      ++next_[rank];
      moved = true;
    }
    return moved;
  }

  std::optional<int> awaited_stage(int rank, const Action& action) const {
    const int stage = schedule_.stage_of[rank][action.chunk];
    if (action.phase == Phase::kForward && stage > 0) return stage - 1;
    if (action.phase == Phase::kBackward && stage < num_stages_ - 1) return stage + 1;
    return std::nullopt;
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

Schedule one_forward_one_backward(int num_ranks, int num_microbatches) {
  Schedule schedule = straight_schedule("1f1b", num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    auto& actions = schedule.actions[rank];
    const int num_warmup = std::min(num_ranks - 1 - rank, num_microbatches);
    int forward = 0, backward = 0;
    while (forward < num_warmup) actions.push_back({Phase::kForward, forward++, 0});
    while (forward < num_microbatches) {
      actions.push_back({Phase::kForward, forward++, 0});
      actions.push_back({Phase::kBackward, backward++, 0});
    }
    while (backward < num_microbatches) actions.push_back({Phase::kBackward, backward++, 0});
  }
  return schedule;
}

Schedule forward_only(int num_ranks, int num_microbatches) {
  Schedule schedule = straight_schedule("forward_only", num_ranks, num_microbatches);
  for (auto& actions : schedule.actions) {
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      actions.push_back({Phase::kForward, microbatch, 0});
    }
  }
  return schedule;
}

std::vector<std::string> check(const Schedule& schedule) {
  std::vector<std::string> faults = shape_faults(schedule);
  if (!faults.empty()) return faults;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) append_list_faults(schedule, rank, faults);
  if (!faults.empty()) return faults;
  return Simulation(schedule).run();
}

}  // namespace pharos::pipeline
