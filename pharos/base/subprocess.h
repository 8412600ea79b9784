// Running other programs: where they are, what they print, how they end.
#pragma once

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::base {

/// The file that a shell would run for `name`: `name` itself when it holds a slash, else the first executable one in a
/// folder of PATH. None when there is no such file.
std::optional<std::filesystem::path> find_program(const std::string& name);

/// `words` as a line for a POSIX shell, quoted where needed. UserError for a NUL byte.
std::string shell_line(const std::vector<std::string>& words);

/// A signal asked this process to end while a command ran under an InterruptGuard. The command has been ended.
class InterruptedError : public std::runtime_error {
 public:
  explicit InterruptedError(int signal);
  int signal() const { return signal_; }

 private:
  int signal_ = 0;
};

/// While this lives, SIGINT, SIGTERM and SIGHUP are blocked in this thread and are seen by the commands that it runs
/// with it: what has begun can be taken back before the process ends. At most one a process.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  /// Readable when a signal has come (signalfd).
  int descriptor() const { return descriptor_; }

 private:
  sigset_t mask_before_ = {};
  int descriptor_ = -1;
};

struct Command {
  std::vector<std::string> words;           ///< the program, found as find_program() does, and its arguments
  std::vector<std::string> variables = {};  ///< "NAME=value", beside or instead of those of this process
  std::filesystem::path folder = {};        ///< to run in; empty: that of this process
  std::filesystem::path input_file = {};    ///< standard input; empty: nothing to read
  /// Called with each line of either output as it comes, without its end; may throw, then the command is ended.
  std::function<void(std::string_view line)> on_line = {};
  std::optional<std::int64_t> limit_ms = {};  ///< it is ended after so long, with timed_out set
  const InterruptGuard* guard = nullptr;      ///< signals of it end the command, with an InterruptedError
};

struct CommandResult {
  int exit_code = 0;  ///< as a shell says it: 128 + signal when a signal ended it
  bool timed_out = false;
  std::string output;  ///< standard output, its first 16 MiB
  std::string error;   ///< standard error, its first 16 MiB
};

/// Runs a command to its end, in a process group of its own: when it is ended early (limit, signal, exception), so are
/// its children, by SIGTERM and two seconds later by SIGKILL. It dies with this thread. UserError when there is no such
/// program, `input_file` cannot be read, or no process can be made; how it ends is for the caller to judge.
CommandResult run_command(const Command& command);

/// The last `count` lines of `text` that are not empty, for an error's "why".
std::string last_lines(std::string_view text, int count);

}  // namespace pharos::base
