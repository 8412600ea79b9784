// Random damage to schedules, for the tests of check().
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline::testing {

/// A number below `limit`.
inline std::ptrdiff_t below(std::mt19937& random, std::size_t limit) {
  return static_cast<std::ptrdiff_t>(random() % limit);
}

/// Drops an action, doubles one, or swaps a forward or backward with the other of its microbatch and chunk.
inline void damage(Schedule& schedule, std::mt19937& random) {
  auto& actions = schedule.actions[below(random, schedule.actions.size())];
  const auto position = actions.begin() + below(random, actions.size());
  switch (below(random, 3)) {
    case 0:
      actions.erase(position);
      break;
    case 1: {
      const Action doubled = *position;
      actions.insert(actions.begin() + below(random, actions.size() + 1), doubled);
      break;
    }
    default: {
      const Phase other = position->phase == Phase::kForward ? Phase::kBackward : Phase::kForward;
      std::iter_swap(position,
                     std::find(actions.begin(), actions.end(), Action{other, position->microbatch, position->chunk}));
    }
  }
}

}  // namespace pharos::pipeline::testing
