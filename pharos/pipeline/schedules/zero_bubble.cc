// Schedules that split the backward: the input gradient (B) is on the critical path, the weight gradient (W) fills
// gaps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>

#include "pharos/pipeline/schedules/generators.h"

namespace pharos::pipeline {
namespace {

constexpr Phase F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

/// Writes one rank's list; each phase of each chunk takes the microbatches in order.
class ActionList {
 public:
  void add(Phase phase, int chunk) {
    actions_.push_back({phase, counts_[static_cast<std::size_t>(phase)][chunk]++, chunk});
  }

  /// The input gradient, followed at once by its weight gradient.
  void add_full_backward(int chunk) {
    add(B, chunk);
    add(W, chunk);
  }

  /// The input gradient; its weight gradient waits for add_oldest_weight().
  void add_deferred_backward(int chunk) {
    deferred_.push_back(chunk);
    add(B, chunk);
  }

  void add_oldest_weight() {
    add(W, deferred_.front());
    deferred_.pop_front();
  }

  int count(Phase phase, int chunk) const { return counts_[static_cast<std::size_t>(phase)][chunk]; }

  /// Without the actions of microbatches from `num_microbatches` on. What is left of a sound schedule is sound, since
  /// actions depend only on actions of their own microbatch.
  std::vector<Action> take(int num_microbatches) {
    std::erase_if(actions_, [num_microbatches](const Action& action) { return action.microbatch >= num_microbatches; });
    return std::move(actions_);
  }

 private:
  std::vector<Action> actions_;
  std::array<std::array<int, 2>, 3> counts_{};  ///< [phase][chunk] -> how many there are so far
  std::deque<int> deferred_;                    ///< chunks of backwards whose weight gradient is not yet in the list
};

std::vector<Action> one_rank_zero_bubble_v(int rank, int num_ranks, int num_microbatches) {
  const int num_filling = std::max(num_microbatches, 2 * num_ranks - 1);
  ActionList list;
  for (int i = 0; i < 2 * (num_ranks - rank) - 1; ++i) list.add(F, 0);
  for (int i = 0; i < rank; ++i) {
    list.add(F, 1);
    list.add(F, 0);
  }
  for (int i = 0; i < num_ranks - rank; ++i) {
    list.add(F, 1);
    list.add_full_backward(1);
  }
  while (list.count(F, 1) < num_filling) {
    if (list.count(F, 0) < num_filling) list.add(F, 0);
    list.add_full_backward(0);
    list.add(F, 1);
    list.add_full_backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    list.add(B, 0);
    list.add(B, 1);
  }
  while (list.count(B, 0) < num_filling) list.add_full_backward(0);
  while (list.count(W, 1) < num_filling) list.add(W, 1);
  while (list.count(W, 0) < num_filling) list.add(W, 0);
  return list.take(num_microbatches);
}

/// The eight steps of the published schedule; M >= 2R makes none of them negative.
std::vector<Action> one_rank_dual_pipe_v(int rank, int num_ranks, int num_microbatches) {
  const int num_behind = num_ranks - 1 - rank;
  ActionList list;
  for (int i = 0; i < 2 * num_behind; ++i) list.add(F, 0);
  for (int i = 0; i < rank + 1; ++i) {
    list.add(F, 0);
    list.add(F, 1);
  }
  for (int i = 0; i < num_behind; ++i) {
    list.add_full_backward(1);
    list.add(F, 1);
  }
  for (int i = 0; i < num_microbatches - 2 * num_ranks + rank + 1; ++i) {
    list.add(F, 0);
    list.add_full_backward(1);
    list.add(F, 1);
    list.add_full_backward(0);
  }
  for (int i = 0; i < num_behind; ++i) {
    list.add_full_backward(1);
    list.add(F, 1);
    list.add_full_backward(0);
  }
  for (int i = 0; i < 2 * (rank + 1); ++i) {  // the second half leaves its weight gradients for the gaps to come
    const int chunk = i % 2 == 0 ? 1 : 0;
    if (i < rank + 1) {
      list.add_full_backward(chunk);
    } else {
      list.add_deferred_backward(chunk);
    }
  }
  for (int i = 0; i < num_behind; ++i) {
    list.add_oldest_weight();
    list.add_deferred_backward(0);
  }
  for (int i = 0; i < rank + 1; ++i) list.add_oldest_weight();
  return list.take(num_microbatches);
}

}  // namespace

Schedule zero_bubble_1p(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("zb1p", num_ranks, 1, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    ActionList list;
    const int num_warmup = std::min(num_ranks - 1 - rank, num_microbatches);
    for (int i = 0; i < num_warmup; ++i) list.add(F, 0);
    while (list.count(B, 0) < num_microbatches) {
      if (list.count(F, 0) < num_microbatches) list.add(F, 0);
      list.add(B, 0);
      if (list.count(B, 0) - list.count(W, 0) > rank) list.add(W, 0);
    }
    while (list.count(W, 0) < num_microbatches) list.add(W, 0);
    schedule.actions[rank] = list.take(num_microbatches);
  }
  return schedule;
}

Schedule zero_bubble_v(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("zbv", num_ranks, 2, num_microbatches, Placement::kFolded);
  for (int rank = 0; rank < num_ranks; ++rank) {
    schedule.actions[rank] = one_rank_zero_bubble_v(rank, num_ranks, num_microbatches);
  }
  return schedule;
}

Schedule dual_pipe_v(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("dualpipev", num_ranks, 2, num_microbatches, Placement::kFolded);
  if (num_microbatches < 2 * num_ranks) {
    throw_microbatch_count("dualpipev", num_ranks, num_microbatches,
                           fmt::format("the count must be at least {}, twice the pipeline ranks", 2 * num_ranks),
                           {std::to_string(2 * num_ranks)});
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    schedule.actions[rank] = one_rank_dual_pipe_v(rank, num_ranks, num_microbatches);
  }
  return schedule;
}

}  // namespace pharos::pipeline
