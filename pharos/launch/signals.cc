#include "pharos/launch/signals.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"

namespace pharos::launch {

SignalQueue::SignalQueue() {
  sigemptyset(&signals_);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    sigaddset(&signals_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &mask_before_);
  // One that comes when the ranks have ended would otherwise take the place of the job's exit code. A handler, unlike
  // SIG_IGN, is not passed on to the ranks.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_DFL) std::signal(signal, [](int) {});
  }
  struct sigaction standard = {};  // where SIGCHLD is ignored, the kernel drops how a child ended
  standard.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &standard, &child_action_before_);
  prctl(PR_GET_CHILD_SUBREAPER, &was_reaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

SignalQueue::~SignalQueue() {
  prctl(PR_SET_CHILD_SUBREAPER, was_reaper_);
  sigaction(SIGCHLD, &child_action_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

std::optional<int> SignalQueue::wait_until(std::optional<std::int64_t> deadline_ns) {
  while (true) {
    timespec left = {};
    if (deadline_ns) {
      const std::int64_t ns = std::max<std::int64_t>(0, *deadline_ns - base::monotonic_ns());
      left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    }
    const int signal = deadline_ns ? sigtimedwait(&signals_, nullptr, &left) : sigwaitinfo(&signals_, nullptr);
    if (signal > 0) return signal;
    if (errno == EAGAIN) return std::nullopt;
    PHAROS_CHECK(errno == EINTR, std::strerror(errno));
  }
}

bool asks_to_end(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

}  // namespace pharos::launch
