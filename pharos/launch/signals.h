// Signals of the launcher as events: blocked, and taken one at a time.
#pragma once

#include <signal.h>

#include <cstdint>
#include <optional>

namespace pharos::launch {

/// While this lives, the signals that a job acts on (SIGCHLD; SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2; SIGTSTP and
/// SIGCONT) are blocked in this thread, and orphaned descendants become children of this process. SIGINT, SIGTERM and
/// SIGHUP do not end the process afterwards either: it is about to say how the job ended.
class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// The next signal; none when CLOCK_MONOTONIC has reached `deadline_ns` before one came.
  std::optional<int> wait_until(std::optional<std::int64_t> deadline_ns);
  /// The mask of before.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  sigset_t signals_ = {};
  sigset_t mask_before_ = {};
  struct sigaction child_action_before_ = {};
  int was_reaper_ = 0;
};

/// SIGINT, SIGTERM and SIGHUP ask a job to end.
bool asks_to_end(int signal);

}  // namespace pharos::launch
