#include "pharos/train/exit_policy.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

namespace pharos::train {
namespace {

std::atomic<int> received_signal{0};
std::atomic<int> num_signals{0};
std::atomic<int> num_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free, "the handler may only touch lock-free atomics");

extern "C" void on_signal(int signal) {
  int none = 0;
  received_signal.compare_exchange_strong(none, signal);
  ++num_signals;
  if (signal != SIGINT || ++num_interrupts == 1) return;
  std::signal(signal, SIG_DFL);
  ::raise(signal);
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

SignalWatch::SignalWatch(const config::TrainConfig& train) : signals_{SIGINT} {
  received_signal = num_signals = num_interrupts = 0;
  if (train.exit_signal_handler) {
    signals_.push_back(SIGTERM);
    if (const int signal = signal_number(train.exit_signal); signal != SIGTERM && signal != SIGINT)
      signals_.push_back(signal);
  }
  take();
}

void SignalWatch::take() const {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : signals_) sigaction(signal, &action, nullptr);
}

int SignalWatch::received() { return received_signal; }
int SignalWatch::count() { return num_signals; }

std::optional<ExitDecision> decide_stop(const config::TrainConfig& train, const ExitInputs& inputs) {
  if (inputs.signal != 0) {
    const std::string name = std::string("SIG") + sigabbrev_np(inputs.signal);
    return ExitDecision{ExitReason::kSignal, fmt::format("exiting program after receiving {}.", name),
                        "signal " + name};
  }
  if (!inputs.time_left_s) return std::nullopt;
  const double needed_s = inputs.next_s + inputs.save_s;
  if (*inputs.time_left_s >= needed_s + train.time_limit_margin_seconds) return std::nullopt;
  return ExitDecision{
      ExitReason::kTimeLimit,
      fmt::format("exiting program before the time limit: {:.1f} s are left, the next step ({:.1f} s) and a save "
                  "({:.1f} s) need {:.1f} s, and train.time_limit_margin_seconds = {} are kept free.",
                  *inputs.time_left_s, inputs.next_s, inputs.save_s, needed_s, train.time_limit_margin_seconds),
      "time limit"};
}

std::optional<ExitDecision> decide_exit(const config::TrainConfig& train, std::int64_t step, const ExitInputs& inputs) {
  if (auto stop = decide_stop(train, inputs)) return stop;
  if (train.exit_duration_in_mins) {
    const double minutes = static_cast<double>(inputs.elapsed_ns) / 60e9;
    if (minutes > static_cast<double>(*train.exit_duration_in_mins)) {
      return ExitDecision{ExitReason::kDuration, fmt::format("exiting program after {} minutes", minutes),
                          "exit duration"};
    }
  }
  if (train.exit_interval && *train.exit_interval > 0 && step % *train.exit_interval == 0) {
    return ExitDecision{ExitReason::kInterval, fmt::format("exiting program at iteration {}", step), "exit interval"};
  }
  return std::nullopt;
}

}  // namespace pharos::train
