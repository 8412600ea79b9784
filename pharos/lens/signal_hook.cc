#include "pharos/lens/signal_hook.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

namespace pharos::lens::signal_hook {
namespace {

struct Hook {
  int signal;
  bool is_installed = false;
  struct sigaction previous = {};
};

std::mutex hooks_mutex;
std::array<Hook, 2> hooks = {Hook{SIGTERM}, Hook{SIGINT}};
constinit std::atomic<int> received{0};

void note(int signal) { received.store(signal, std::memory_order_relaxed); }

bool is_ours(int signal) {
  struct sigaction current = {};
  return sigaction(signal, nullptr, &current) == 0 && current.sa_handler == &note;
}

void restore(Hook& hook) {
  if (hook.is_installed && is_ours(hook.signal)) sigaction(hook.signal, &hook.previous, nullptr);
  hook.is_installed = false;
}

}  // namespace

void install() {
  const std::lock_guard lock(hooks_mutex);
  received.store(0);
  for (Hook& hook : hooks) {
    if (hook.is_installed || sigaction(hook.signal, nullptr, &hook.previous) != 0) continue;
    if (hook.previous.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = &note;
    action.sa_flags = SA_RESTART;
    hook.is_installed = sigaction(hook.signal, &action, nullptr) == 0;
  }
}

int take() { return received.exchange(0, std::memory_order_relaxed); }

void pass_on(int signal) {
  restore();
  kill(getpid(), signal);
}

void restore() {
  const std::lock_guard lock(hooks_mutex);
  for (Hook& hook : hooks) restore(hook);
}

}  // namespace pharos::lens::signal_hook
