// Measured steps as timelines: all ranks of a pipeline on one clock, and where each of them waited, and for what.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/pipeline/measured.h"
#include "pharos/pipeline/report/idle.h"
#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {

/// One step of one pipeline, measured on all its ranks. Times in milliseconds from the first start.
struct StepTimeline {
  std::int64_t step = 0;
  /// idle_stage also has what idle_times() calls kHost, so that busy + idle() is the span. peak_bytes: as measured.
  Timeline timeline;
  std::vector<std::vector<double>> asked;     ///< [rank][position]
  std::vector<std::vector<Idle>> idle;        ///< [rank]
  std::vector<std::int64_t> clock_offset_ns;  ///< [rank] -> taken from the rank's times; rank 0 has 0
};

/// The steps of `replica` that were measured on every rank of the pipeline, by step. Steps that are not whole, or whose
/// actions are not a sound schedule, are left out.
///
/// Clocks of different nodes differ. An action that started before the one it depends on had ended on another rank
/// shows it: with o_r the offset of rank r's clock, tensors from r to s bound o_s - o_r from above by the least
/// start - end among them, those from s to r from below. For neighbours r and s = r + 1 the difference is 0 when the
/// bounds allow it, else the middle between them (or the one bound, if tensors go one way only).
std::vector<StepTimeline> step_timelines(const std::vector<MeasuredStep>& steps, std::int64_t replica = 0);

/// What the stages cost, in milliseconds: medians over all microbatches of `steps` (not empty, all of one schedule).
/// Without kWeight a backward is both gradients, and each gets half of it.
/// A transfer is the start of the receiving action less the end of the sending one, where the receiver already waited
/// when the sender ended; on hops where none ever did, what was waited for a tensor that was under way. Forward and
/// backward of a hop are averaged, so that an offset of the clocks cancels. Hops within a rank get the mean of the
/// others: they count when another schedule puts their ends on two ranks.
/// Bytes: the rank's measured peak by its peak of chunk activations, kept until the last phase; 0 if not measured.
StageCosts costs_of(const std::vector<StepTimeline>& steps);

/// The same from what read_measured_steps() gives: all whole steps of replica 0 but the first (unless it is the only
/// one) that have the schedule of the last. UserError when there is none.
StageCosts costs_of(const std::vector<MeasuredStep>& steps);

/// Those of `steps` that have the same actions on the same stages as the last; without the first of all unless it is
/// the only one, since it warms up.
std::vector<StepTimeline> typical_steps(std::vector<StepTimeline> steps);

}  // namespace pharos::pipeline
