// Several ranks in one process, for tests.
#pragma once

#include <cstdint>
#include <functional>

#include "pharos/comm/world.h"

namespace pharos::comm::testing {

/// Runs `body` as ranks 0 … num_ranks - 1, each on a thread with a World of its own over a free local port, and waits
/// for all. The exception that was thrown first is thrown here. Use EXPECT_*, not ASSERT_* (it leaves one rank only,
/// and the others wait for it until `options.timeout`).
void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body,
               const WorldOptions& options = {.device = at::kCPU,
                                              .rendezvous_timeout = std::chrono::seconds(60),
                                              .timeout = std::chrono::seconds(60)});

}  // namespace pharos::comm::testing
