#include "pharos/train/report/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "pharos/base/text.h"
#include "pharos/base/untrusted/regular_file.h"
#include "pharos/lens/logs/logger.h"

namespace pharos::train {
namespace {

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Cells on screen, counting a UTF-8 sequence as one.
std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string render_progress(const ProgressState& state, int columns) {
  const double share =
      state.train_iters > 0
          ? std::clamp(static_cast<double>(state.step) / static_cast<double>(state.train_iters), 0.0, 1.0)
          : 0;
  const auto left_ns =
      static_cast<std::int64_t>(static_cast<double>(state.train_iters - state.step) * state.seconds_per_step * 1e9);
  std::string text = fmt::format("{:3.0f}% step {}/{} · loss {:.4f} · {} tokens/s · ETA {}", 100 * share, state.step,
                                 state.train_iters, state.loss, base::format_count(state.tokens_per_second),
                                 base::format_duration(left_ns));
  constexpr int kBar = 20;
  if (static_cast<int>(display_width(text)) + kBar + 3 <= columns) {
    const int filled = static_cast<int>(share * kBar);
    text = fmt::format("[{}{}] {}", std::string(filled, '#'), std::string(kBar - filled, '-'), text);
  }
  while (columns > 0 && static_cast<int>(display_width(text)) > columns) {
    do {
      text.pop_back();
    } while (!text.empty() && (text.back() & 0xC0) == 0x80);
  }
  return text;
}

namespace {

lens::Severity severity_of(std::string_view line) {
  if (line.starts_with("error:")) return lens::Severity::kError;
  return line.starts_with("warning:") ? lens::Severity::kWarn : lens::Severity::kInfo;
}

}  // namespace

Console::Console(const std::filesystem::path& log_path, Output output)
    : log_(base::open_regular_file(log_path, O_WRONLY | O_CREAT | O_APPEND)), output_(output) {}

Console::~Console() {
  ::close(log_);
  if (progress_shown_) std::cout << std::endl;
}

void Console::clear_progress() {
  if (progress_shown_) std::cout << "\r\x1b[K";
  progress_shown_ = false;
}

void Console::append(std::string_view text) {
  lens::log_line(severity_of(text), text);
  const std::string line = std::string(text) + "\n";
  if (::write(log_, line.data(), line.size()) == static_cast<ssize_t>(line.size()) || log_failed_) return;
  log_failed_ = true;
  std::cerr << "warning: the log file could not be written; training goes on, lines are missing from here.\n";
}

void Console::line(std::string_view text) {
  clear_progress();
  if (output_ != Output::kNone) std::cout << text << std::endl;
  append(text);
}

void Console::log_line(std::string_view text) {
  if (output_ != Output::kTerminal) {
    line(text);
  } else {
    append(text);
  }
}

void Console::log_only(std::string_view text) { append(text); }

void Console::progress(const ProgressState& state) {
  if (output_ != Output::kTerminal) return;
  std::cout << "\r\x1b[K" << render_progress(state, terminal_columns() - 1) << std::flush;
  progress_shown_ = true;
}

}  // namespace pharos::train
