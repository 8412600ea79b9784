// Clocks of different nodes, compared by what the pipeline itself proves about them.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/pipeline/measured.h"

namespace pharos::pipeline {

/// [rank] -> nanoseconds to take from the rank's times so that they are on the clock of rank 0. ranks: [rank], one
/// step, whose actions are those of `schedule` (sound). The rule is at step_timelines().
std::vector<std::int64_t> clock_offsets(const Schedule& schedule, const std::vector<const MeasuredStep*>& ranks);

}  // namespace pharos::pipeline
