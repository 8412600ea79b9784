// Schedules are data: per rank an ordered list of actions. The same data is executed, tested and (later) simulated and
// drawn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pharos::pipeline {

/// kBackward includes the weight gradient unless the schedule has kWeight actions.
enum class Phase : std::uint8_t { kForward, kBackward, kWeight };

struct Action {
  Phase phase;
  int microbatch;
  int chunk;
  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int num_ranks = 1;
  int num_chunks = 1;  ///< model chunks per rank
  int num_microbatches = 1;
  std::vector<std::vector<int>> stage_of;    ///< [rank][chunk] -> position of that chunk in the model
  std::vector<std::vector<Action>> actions;  ///< [rank] -> in order
};

/// 1F1B without interleaving: rank r runs min(ranks - 1 - r, microbatches) forwards, then alternates.
Schedule one_forward_one_backward(int num_ranks, int num_microbatches);

/// Forward passes only, for evaluation.
Schedule forward_only(int num_ranks, int num_microbatches);

/// What is wrong with a schedule: an action missing, doubled, out of order, or waiting for ever. Empty when sound.
std::vector<std::string> check(const Schedule& schedule);

}  // namespace pharos::pipeline
