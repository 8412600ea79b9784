// Errors a user can act on, and the exit codes every sub-command leaves with.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace pharos::base {

/// Exit codes of the program (architecture.md section 4). 16 and 17 are those of Megatron's rerun machine.
enum class ExitCode : int {
  kDone = 0,
  kUserError = 2,        ///< configuration, file or environment; do not requeue
  kTrainingFailure = 3,  ///< the run itself failed, for example a non-finite loss
  kInterrupted = 4,      ///< stopped by signal or time limit after saving; requeue
  kRerunRestart = 16,
  kRerunFailed = 17,
};

/// A fault of configuration, file or environment. The message says what is wrong, where, why, and how to fix it; it is
/// shown without a stack and the program leaves with ExitCode::kUserError.
///
///     throw UserError({.what = "train.train_iters = abc is not an integer.", .where = "command line",
///                      .fix = "Give a whole number, for example train.train_iters=1000."});
class UserError : public std::runtime_error {
 public:
  struct Parts {
    std::string what = {};   ///< one sentence naming the field or file and its value
    std::string where = {};  ///< file:line, "command line", …; may be empty
    std::string why = {};    ///< the rule that is broken; may be empty
    std::string fix = {};    ///< what to do; may be empty
  };
  explicit UserError(Parts parts);
  const Parts& parts() const { return parts_; }

 private:
  Parts parts_;
};

/// The run failed for a reason that is not the user's input (non-finite loss, disk full while saving).
class TrainingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A broken invariant of Pharos itself.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace pharos::base

/// Throws InternalError with file, line, the condition and `detail` (a std::string expression, evaluated only then).
#define PHAROS_CHECK(condition, detail) \
  (static_cast<bool>(condition) ? void(0) : ::pharos::base::fail_check(__FILE__, __LINE__, #condition, (detail)))
