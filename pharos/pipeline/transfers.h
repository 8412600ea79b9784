// Which tensors travel between ranks: derived from the schedule's dependencies, not written by hand.
#pragma once

#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// One action of one rank; `position` counts in that rank's list.
struct ActionRef {
  int rank;
  int position;
  Action action;
  bool operator==(const ActionRef&) const = default;
};

/// The output of `from` (activations of a forward, the input gradient of a backward) is the input of `to`, which is the
/// same phase and microbatch on another rank.
struct Transfer {
  ActionRef from;
  ActionRef to;
  /// Place among all transfers from this sender to this receiver, by when it is ready and by when it is needed. In
  /// folded schedules the two orders differ: a channel that keeps the order of its messages then needs one channel per
  /// phase and chunk, or posts receives in the sender's order.
  int send_order;
  int receive_order;
  bool operator==(const Transfer&) const = default;
};

/// All transfers between different ranks, ordered by sender, then by the sender's position. What one rank hands to
/// itself (the turn of a folded schedule, the chunks of a single rank) is not a transfer.
/// The schedule must be sound (check() is empty), else InternalError.
std::vector<Transfer> transfers(const Schedule& schedule);

}  // namespace pharos::pipeline
