#include "pharos/lens/life/signal_hook.h"

#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "pharos/lens/life/quiet_thread.h"

namespace pharos::lens::signal_hook {
namespace {

struct Hook {
  int signal;
  bool is_installed = false;
  struct sigaction previous = {};
};

/// What handler and thread share between install() and restore(). Never freed: a handler may be about to use it.
struct Watch {
  const pid_t pid = getpid();
  sem_t noted;
  std::atomic<int> signal{0};
  std::atomic<bool> is_over{false};
};

std::mutex hooks_mutex;
std::array<Hook, 2> hooks = {Hook{SIGTERM}, Hook{SIGINT}};
constinit std::atomic<Watch*> current{nullptr};
constinit std::atomic<bool> is_passing{false};

/// Async-signal-safe. Reached after restore() through someone's chain, and in a forked child.
void handle_as_before(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = hooks[signal == SIGTERM ? 0 : 1].previous;
  if (previous.sa_handler == SIG_DFL) {
    sigaction(signal, &previous, nullptr);
    raise(signal);
    return;
  }
  if (is_passing.exchange(true)) return;  // the one before calls us in turn
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  }
  is_passing.store(false);
}

void note(int signal, siginfo_t* info, void* context) {
  const int kept_errno = errno;
  Watch* watch = current.load();
  if (watch == nullptr || watch->pid != getpid()) {
    handle_as_before(signal, info, context);
  } else {
    watch->signal.store(signal);
    sem_post(&watch->noted);
  }
  errno = kept_errno;
}

bool is_ours(int signal) {
  struct sigaction now = {};
  return sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &note;
}

void install(Hook& hook) {
  if (is_ours(hook.signal) || sigaction(hook.signal, nullptr, &hook.previous) != 0) return;
  if (hook.previous.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_sigaction = &note;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  hook.is_installed = sigaction(hook.signal, &action, nullptr) == 0;
}

void restore(Hook& hook) {
  if (hook.is_installed && is_ours(hook.signal)) sigaction(hook.signal, &hook.previous, nullptr);
  hook.is_installed = false;
}

void act_on_signals(Watch& watch, const std::function<void(int)>& act) {
  while (true) {
    while (sem_wait(&watch.noted) != 0) continue;
    if (const int signal = watch.signal.exchange(0)) act(signal);
    if (watch.is_over.load()) return;
  }
}

}  // namespace

void install(std::function<void(int)> act) {
  static auto* const watches = new std::vector<std::unique_ptr<Watch>>;
  const std::lock_guard lock(hooks_mutex);
  watches->push_back(std::make_unique<Watch>());
  Watch* watch = watches->back().get();
  sem_init(&watch->noted, 0, 0);
  internal::start_quiet_thread([watch, act = std::move(act)] { act_on_signals(*watch, act); }).detach();
  current.store(watch);
  for (Hook& hook : hooks) install(hook);
}

void pass_on(int signal) {
  restore();
  kill(getpid(), signal);
}

void restore() {
  const std::lock_guard lock(hooks_mutex);
  for (Hook& hook : hooks) restore(hook);
  Watch* watch = current.exchange(nullptr);
  if (watch == nullptr) return;
  watch->is_over.store(true);
  sem_post(&watch->noted);
}

}  // namespace pharos::lens::signal_hook
