// When a run stops before its last step, and what it then leaves with (bridge-config.md 7.6).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pharos/config/run_config.h"

namespace pharos::train {

/// Catches the configured exit signal (train.exit_signal_handler) and SIGINT while it lives. The first signal asks the
/// loop to stop after the step in flight; a second one ends the process at once, as if nothing had been caught.
class SignalWatch {
 public:
  explicit SignalWatch(const config::TrainConfig& train);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// The signal received so far, or 0.
  static int received();

 private:
  std::optional<int> exit_signal_;
};

enum class ExitReason : std::uint8_t { kSignal, kDuration, kInterval };

struct ExitDecision {
  ExitReason reason;
  std::string message;  ///< Megatron's: "exiting program after receiving SIGTERM."
};

/// What exits depend on beside the step: the signal received (0: none), and the time since the process started.
struct ExitInputs {
  int signal = 0;
  std::int64_t elapsed_ns = 0;
};

/// Whether to stop after completed step `step`. Ranks that give the same inputs decide alike.
std::optional<ExitDecision> decide_exit(const config::TrainConfig& train, std::int64_t step, const ExitInputs& inputs);

}  // namespace pharos::train
