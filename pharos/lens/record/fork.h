// A child made by fork inherits mutexes as they were, perhaps held by a thread it does not have, and totals that its
// parent exports. What was made before the fork must therefore rest in the child.
#pragma once

#include <atomic>
#include <cstdint>

namespace pharos::lens::internal {

/// How many forks lie between this process and the first that called watch_forks().
extern constinit std::atomic<std::uint32_t> fork_generation;

/// Counts forks from the first call on; returns the generation of now.
std::uint32_t watch_forks();

}  // namespace pharos::lens::internal
