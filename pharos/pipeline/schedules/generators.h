// What generators of schedules share.
#pragma once

#include <string>
#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// kStraight: chunk c of rank r is stage cR+r. kFolded: odd chunks run back, so that chunk 1 of rank r is stage 2R-1-r
/// and the turn from one chunk to the next stays on one rank.
enum class Placement { kStraight, kFolded };

/// Names, sizes and stages, without actions. InternalError for a size below 1.
Schedule empty_schedule(std::string name, int num_ranks, int num_chunks, int num_microbatches,
                        Placement placement = Placement::kStraight);

/// UserError for a count of microbatches that a schedule cannot run.
[[noreturn]] void throw_microbatch_count(const std::string& name, int num_ranks, int num_microbatches,
                                         const std::string& rule, const std::vector<std::string>& nearest);

}  // namespace pharos::pipeline
