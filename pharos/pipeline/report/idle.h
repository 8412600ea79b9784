// Where the ranks of a timeline wait, and for what.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

enum class IdleReason : std::uint8_t {
  kFill,      ///< before the first action of the rank
  kStage,     ///< the awaited stage was still computing
  kTransfer,  ///< the awaited stage had ended, its tensor was not there yet
  kHost,      ///< nothing to wait for, or not asked yet: between two actions of the program
  kDrain,     ///< after the last action of the rank
};
constexpr int kNumIdleReasons = 5;

/// A time without work of one rank.
struct Idle {
  IdleReason reason;
  double start;
  double end;
  int stage = -1;  ///< the awaited one, of kStage and kTransfer
  bool operator==(const Idle&) const = default;
};

/// [rank] -> its idle times in order; with its actions they cover the span. asked: [rank][position] -> when the rank
/// was free for the action, as MeasuredAction::asked_ns; null: when the action before had ended.
std::vector<std::vector<Idle>> idle_times(const Timeline& timeline,
                                          const std::vector<std::vector<double>>* asked = nullptr);

/// The rank that works longest, when that is more than 1 % above the mean of all ranks.
std::optional<int> busiest_rank(const Timeline& timeline);

}  // namespace pharos::pipeline
