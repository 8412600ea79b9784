#include "pharos/train/attempts/attempt_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "pharos/base/clock.h"
#include "pharos/base/file.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::train {
namespace {

double now_s() { return static_cast<double>(base::wall_ns()) / 1e9; }

/// Of this process, as wall time.
double process_start_s() {
  return now_s() - static_cast<double>(base::monotonic_ns() - base::process_start_monotonic_ns()) / 1e9;
}

std::optional<std::int64_t> count_in(const lens::Environment& environment, const char* name) {
  const auto value = environment.get_nonempty(name);
  std::int64_t count = 0;
  if (!value) return std::nullopt;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), count);
  return error == std::errc() && end == value->data() + value->size() ? std::optional(count) : std::nullopt;
}

const char* cause_of(base::ExitCode code) {
  switch (code) {
    case base::ExitCode::kDone:
      return "done";
    case base::ExitCode::kUserError:
      return "user error";
    case base::ExitCode::kInterrupted:
      return "interrupted";
    case base::ExitCode::kRerunRestart:
    case base::ExitCode::kRerunFailed:
    case base::ExitCode::kTrainingFailure:
      break;
  }
  return "training failure";
}

}  // namespace

AttemptLog::AttemptLog(const std::filesystem::path& run_folder) : path_(run_folder / kAttemptsFile) {
  AttemptHistory history;
  try {
    if (std::filesystem::exists(path_)) history = parse_attempts(base::read_regular_file(path_));
  } catch (const std::exception& error) {
    notes_.push_back(std::string("the attempts before this one are not known: ") + error.what());
  }
  if (history.num_damaged_lines > 0) {
    notes_.push_back(fmt::format("{} damaged line{} of {} passed over", history.num_damaged_lines,
                                 history.num_damaged_lines == 1 ? " is" : "s are", path_.string()));
  }
  std::optional<RunMetrics> metrics;
  for (AttemptRecord& record : history.attempts) {
    if (!record.run_id.empty()) run_id_ = record.run_id;
    current_.number = record.number + 1;
    if (record.end) continue;
    if (!metrics) metrics.emplace(run_folder / "metrics.jsonl");
    metrics->complete(record);
    record.cause = "lost";
    append(end_line(record));
    notes_.push_back(record.last_step ? fmt::format("attempt {} was lost: it ended without a word after step {}",
                                                    record.number, *record.last_step)
                                      : fmt::format("attempt {} was lost during its set-up", record.number));
  }
}

void AttemptLog::start(const std::string& run_id, const std::vector<std::string>& hosts, std::int64_t num_ranks,
                       const lens::Environment& environment) {
  current_.start = process_start_s();
  current_.run_id = run_id;
  current_.hosts = hosts;
  current_.num_ranks = num_ranks;
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) {
    if (current_.job_id.empty()) current_.job_id = environment.get_nonempty(name).value_or("");
  }
  current_.restart_count = count_in(environment, "SLURM_RESTART_COUNT");
  if (!current_.restart_count) current_.restart_count = count_in(environment, "TORCHELASTIC_RESTART_COUNT");
  has_started_ = true;
  append(start_line(current_));
}

void AttemptLog::begin_steps(std::int64_t first_step) {
  current_.begin = now_s();
  current_.seconds.start_up = *current_.begin - current_.start;
  current_.first_step = current_.last_step = first_step;
  append(begin_line(current_));
}

void AttemptLog::end(base::ExitCode code, const std::string& message) {
  if (!has_started_ || has_ended_) return;
  has_ended_ = true;
  current_.end = now_s();
  current_.exit_code = static_cast<int>(code);
  const bool is_error = code != base::ExitCode::kDone && code != base::ExitCode::kInterrupted;
  if (is_error || current_.cause.empty()) current_.cause = cause_of(code);
  current_.message = message.substr(0, message.find('\n'));
  append(end_line(current_));
}

void AttemptLog::append(const nlohmann::json& line) {
  if (path_.empty()) return;
  std::string failure;
  try {
    const int descriptor = base::open_regular_file(path_, O_RDWR | O_CREAT | O_APPEND);
    // A line that was cut off must not take this one along.
    const off_t size = ::lseek(descriptor, 0, SEEK_END);
    char last = '\n';
    if (size > 0 && ::pread(descriptor, &last, 1, size - 1) != 1) last = '\0';
    std::string text = last == '\n' ? "" : "\n";
    text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (::write(descriptor, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      failure = "'" + path_.string() + "' could not be written: " + std::strerror(errno) + ".";
    else
      ::fdatasync(descriptor);
    ::close(descriptor);
  } catch (const base::UserError& error) {
    failure = error.parts().what;
  }
  if (failure.empty() || has_failed_) return;
  has_failed_ = true;
  std::cerr << "warning: " << failure << " Training goes on; `pharos goodput` will know less of this attempt.\n";
}

}  // namespace pharos::train
