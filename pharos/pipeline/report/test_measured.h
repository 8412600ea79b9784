// Measured steps as a cluster would write them, whose times are known. For tests.
#pragma once

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "pharos/pipeline/measured.h"
#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

constexpr std::int64_t kTestBeginNs = 1'700'000'000'000'000'000;

inline std::int64_t test_ns(double milliseconds) { return std::llround(milliseconds * 1e6); }

/// What each rank of `timeline` (milliseconds) writes of step `step`. clock_offset: [rank], milliseconds its clock is
/// ahead; empty: none.
inline std::vector<MeasuredStep> measured_of(const Timeline& timeline, std::int64_t step = 1,
                                             const std::vector<double>& clock_offset = {}) {
  const Schedule& schedule = timeline.schedule;
  std::vector<MeasuredStep> steps;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    MeasuredStep measured{.step = step,
                          .schedule = schedule.name,
                          .num_ranks = schedule.num_ranks,
                          .num_chunks = schedule.num_chunks,
                          .num_microbatches = schedule.num_microbatches,
                          .rank = rank,
                          .stages = schedule.stage_of[rank]};
    measured.global_rank = rank;
    const std::int64_t begin_ns =
        kTestBeginNs + step * 1'000'000'000 + (clock_offset.empty() ? 0 : test_ns(clock_offset[rank]));
    std::int64_t free_ns = begin_ns;
    for (const TimedAction& timed : timeline.ranks[rank].actions) {
      measured.actions.push_back({.action = timed.action,
                                  .asked_ns = free_ns,
                                  .start_ns = begin_ns + test_ns(timed.start),
                                  .end_ns = begin_ns + test_ns(timed.end)});
      free_ns = measured.actions.back().end_ns;
    }
    steps.push_back(std::move(measured));
  }
  return steps;
}

/// Stages of whole, different milliseconds, and the same transfer time on each hop.
inline StageCosts uneven_costs(int num_stages, double transfer) {
  StageCosts costs = even_costs(num_stages, 10, 12, 8, transfer, 0);
  for (int stage = 0; stage < num_stages; ++stage) {
    costs.forward[stage] += stage % 3;
    costs.backward[stage] += 2 * (stage % 2);
    costs.weight[stage] += stage == num_stages - 1 ? 6 : 0;
  }
  return costs;
}

/// A schedule of each kind for 3 ranks and 9 microbatches.
inline std::vector<Schedule> one_of_each() {
  std::vector<Schedule> schedules;
  for (const std::string& name : schedule_names()) {
    const bool has_chunks = name == "interleaved" || name == "zbv" || name == "dualpipev";
    schedules.push_back(make_schedule(name, {.num_ranks = 3, .num_chunks = has_chunks ? 2 : 1, .num_microbatches = 9}));
  }
  return schedules;
}

}  // namespace pharos::pipeline
