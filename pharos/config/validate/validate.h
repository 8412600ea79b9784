// All rules between and within fields, before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/config/problem.h"
#include "pharos/config/resolve.h"

namespace pharos::config {

/// Every broken rule for a run of `world_size` ranks: ranges of single fields, Megatron-Bridge's rules M1–M12 and
/// V1–V25 (those about fields Pharos has), and for kTrain the capabilities this release has not. Expects derived values
/// (resolve()).
std::vector<Problem> validate(const ResolvedConfig& resolved, std::int64_t world_size, Purpose purpose);

}  // namespace pharos::config
