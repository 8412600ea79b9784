#include "pharos/train/exit_policy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace pharos::train {
namespace {

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler may only touch lock-free atomics");

extern "C" void on_signal(int signal) {
  if (received_signal.exchange(signal) != 0) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

int signal_number(config::ExitSignal signal) {
  switch (signal) {
    case config::ExitSignal::kTerm:
      return SIGTERM;
    case config::ExitSignal::kInt:
      return SIGINT;
    case config::ExitSignal::kUsr1:
      return SIGUSR1;
    case config::ExitSignal::kUsr2:
      return SIGUSR2;
    case config::ExitSignal::kHup:
      return SIGHUP;
  }
  return SIGTERM;
}

}  // namespace

SignalWatch::SignalWatch(const config::TrainConfig& train) {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  if (train.exit_signal_handler) {
    exit_signal_ = signal_number(train.exit_signal);
    sigaction(*exit_signal_, &action, nullptr);
  }
}

SignalWatch::~SignalWatch() {
  std::signal(SIGINT, SIG_DFL);
  if (exit_signal_) std::signal(*exit_signal_, SIG_DFL);
}

int SignalWatch::received() { return received_signal; }

std::optional<ExitDecision> decide_exit(const config::TrainConfig& train, std::int64_t step, const ExitInputs& inputs) {
  if (inputs.signal != 0) {
    return ExitDecision{ExitReason::kSignal,
                        fmt::format("exiting program after receiving SIG{}.", sigabbrev_np(inputs.signal))};
  }
  if (train.exit_duration_in_mins) {
    const double minutes = static_cast<double>(inputs.elapsed_ns) / 60e9;
    if (minutes > static_cast<double>(*train.exit_duration_in_mins)) {
      return ExitDecision{ExitReason::kDuration, fmt::format("exiting program after {} minutes", minutes)};
    }
  }
  if (train.exit_interval && *train.exit_interval > 0 && step % *train.exit_interval == 0) {
    return ExitDecision{ExitReason::kInterval, fmt::format("exiting program at iteration {}", step)};
  }
  return std::nullopt;
}

}  // namespace pharos::train
