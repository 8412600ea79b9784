// Threads of telemetry take no signals: they belong to the training thread.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace pharos::lens::internal {

/// Runs `body` in a thread with all signals blocked. std::system_error when there can be no more threads; the calling
/// thread's mask is as before in any case.
template <typename Body>
std::thread start_quiet_thread(Body&& body) {
  struct Mask {
    sigset_t before;
    Mask() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    Mask(const Mask&) = delete;
  };
  const Mask mask;
  return std::thread(std::forward<Body>(body));
}

}  // namespace pharos::lens::internal
