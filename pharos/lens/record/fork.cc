#include "pharos/lens/record/fork.h"

#include <pthread.h>

namespace pharos::lens::internal {

constinit std::atomic<std::uint32_t> fork_generation{0};

std::uint32_t watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return fork_generation.load(std::memory_order_relaxed);
}

}  // namespace pharos::lens::internal
