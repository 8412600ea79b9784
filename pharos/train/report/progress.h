// What a person sees while a run goes on: on a terminal one line that renews itself (step, loss, speed, time left) with
// the log lines above it; elsewhere the log lines alone. The log file gets every line in both cases.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace pharos::train {

struct ProgressState {
  std::int64_t step = 0;
  std::int64_t train_iters = 0;
  double loss = 0;
  double seconds_per_step = 0;
  double tokens_per_second = 0;
};

/// "[####----]  37% step 370/1000 · loss 1.842 · 11.2 K tokens/s · ETA 1 min 20 s", at most `columns` wide.
std::string render_progress(const ProgressState& state, int columns);

class Console {
 public:
  enum class Output : std::uint8_t {
    kTerminal,  ///< standard output is a terminal: a line that renews itself instead of log lines
    kPlain,     ///< standard output gets every line
    kNone,      ///< the log file alone
  };
  /// Log lines are appended to `log_path`; UserError when it is no regular file or cannot be written.
  Console(const std::filesystem::path& log_path, Output output);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// One or more whole lines, to standard output and to the log file.
  void line(std::string_view text);
  /// To the log file only when standard output is a terminal that shows progress instead.
  void log_line(std::string_view text);
  /// To the log file alone, for what the caller shows by other means.
  void log_only(std::string_view text);
  void progress(const ProgressState& state);

 private:
  void clear_progress();
  /// To the log file, and to telemetry's logs; a disk that is full costs the lines, not the run, and is said once on
  /// standard error.
  void append(std::string_view text);

  int log_;  ///< descriptor
  Output output_;
  bool progress_shown_ = false;
  bool log_failed_ = false;
};

}  // namespace pharos::train
