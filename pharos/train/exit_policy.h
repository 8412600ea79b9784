// When a run stops before its last step, and what it then leaves with (bridge-config.md 7.6).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"

namespace pharos::train {

/// Catches SIGINT and, with train.exit_signal_handler, the configured exit signal and SIGTERM from here until the
/// process ends: none of them ends a run by its default action, in set-up or on the way out. The first signal asks the
/// run to stop at the next chance. Repeated ones are counted and change nothing, since a scheduler sends several while
/// a checkpoint is being saved; but a second SIGINT, which is a person's, ends the process at once, as if nothing had
/// been caught.
class SignalWatch {
 public:
  explicit SignalWatch(const config::TrainConfig& train);
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Takes the signals again, where somebody has put a handler of his own since.
  void take() const;
  /// The first signal received, or 0.
  static int received();
  /// How many were received.
  static int count();

 private:
  std::vector<int> signals_;
};

enum class ExitReason : std::uint8_t { kSignal, kTimeLimit, kDuration, kInterval };

struct ExitDecision {
  ExitReason reason;
  std::string message;  ///< Megatron's: "exiting program after receiving SIGTERM."
  std::string cause;    ///< for the record of the attempt: "signal SIGTERM", "time limit", …
};

/// What exits depend on beside the step: the signal received (0: none), the time since the process started, and with a
/// time limit what is left of it, against what would be begun next and the save that must follow.
struct ExitInputs {
  int signal = 0;
  std::int64_t elapsed_ns = 0;
  std::optional<double> time_left_s = {};
  double next_s = 0;
  double save_s = 0;
};

/// Whether to stop here, before anything further is begun: a signal came, or the time limit leaves too little time.
std::optional<ExitDecision> decide_stop(const config::TrainConfig& train, const ExitInputs& inputs);

/// Whether to stop after completed step `step`. Ranks that give the same inputs decide alike.
std::optional<ExitDecision> decide_exit(const config::TrainConfig& train, std::int64_t step, const ExitInputs& inputs);

}  // namespace pharos::train
