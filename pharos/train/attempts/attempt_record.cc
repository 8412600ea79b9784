#include "pharos/train/attempts/attempt_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

namespace pharos::train {
namespace {

using nlohmann::json;

/// Neither counts nor seconds of a run come near these, and sums and nanoseconds of what is below fit into 64 bits.
constexpr std::int64_t kMostCount = 1'000'000'000'000'000;
/// An attempt is numbered one above the one before it. Lines may be lost, but not so many in a row: a number further
/// above all others is damage, so that the number after the largest that is read can be read again.
constexpr std::int64_t kMostLostAttempts = 1'000'000;
constexpr std::int64_t kMostExitCode = 255;
constexpr double kMostSeconds = 8e9;

/// The value of `key` where it is there and of that kind; a damaged file must not make an exception.
std::optional<double> number(const json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::abs(value) <= kMostSeconds ? std::optional(value) : std::nullopt;
}

/// Not below 0, as all counts here.
std::optional<std::int64_t> integer(const json& line, const char* key, std::int64_t most = kMostCount) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  const auto value = found->get<std::int64_t>();  // one above 2^63 - 1 comes as a negative one
  return value >= 0 && value <= most ? std::optional(value) : std::nullopt;
}

std::string text(const json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

json line_of(const char* event, const AttemptRecord& record, double time) {
  return {{"event", event}, {"attempt", record.number}, {"time", time}};
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

/// Steps that would be there for the next attempt.
std::int64_t useful_steps(const AttemptRecord& record) {
  if (!record.first_step || !record.last_step) return 0;
  const std::int64_t kept =
      record.cause == "done" ? *record.last_step : std::min(*record.last_step, record.last_saved_step.value_or(0));
  return std::max<std::int64_t>(0, kept - *record.first_step);
}

void read_start(AttemptRecord& record, const json& line) {
  record.start = number(line, "time").value_or(0);
  record.run_id = text(line, "run_id");
  record.job_id = text(line, "job_id");
  record.restart_count = integer(line, "restart_count");
  record.num_ranks = integer(line, "num_ranks").value_or(1);
  const auto hosts = line.find("hosts");
  if (hosts == line.end() || !hosts->is_array()) return;
  for (const json& host : *hosts) {
    if (host.is_string()) record.hosts.push_back(host.get<std::string>());
  }
}

void read_end(AttemptRecord& record, const json& line) {
  record.end = number(line, "time");
  record.cause = text(line, "cause");
  if (const auto code = integer(line, "exit_code", kMostExitCode)) record.exit_code = static_cast<int>(*code);
  record.message = text(line, "message");
  if (const auto first = integer(line, "first_step")) record.first_step = first;
  record.last_step = integer(line, "last_step");
  record.last_saved_step = integer(line, "last_saved_step");
  const auto found = line.find("seconds");
  const json seconds = found != line.end() && found->is_object() ? *found : json::object();
  const auto value = [&](const char* key) { return std::max(0.0, number(seconds, key).value_or(0)); };
  record.seconds = {.start_up = value("start_up"),
                    .steps = value("steps"),
                    .evaluation = value("evaluation"),
                    .save = value("save"),
                    .data_wait = value("data_wait")};
}

}  // namespace

json start_line(const AttemptRecord& record) {
  json line = line_of("start", record, record.start);
  line["run_id"] = record.run_id;
  line["job_id"] = record.job_id.empty() ? json(nullptr) : json(record.job_id);
  line["restart_count"] = or_null(record.restart_count);
  line["hosts"] = record.hosts;
  line["num_ranks"] = record.num_ranks;
  return line;
}

json begin_line(const AttemptRecord& record) {
  json line = line_of("begin", record, record.begin.value_or(record.start));
  line["first_step"] = or_null(record.first_step);
  return line;
}

json end_line(const AttemptRecord& record) {
  json line = line_of("end", record, record.end.value_or(record.start));
  line["cause"] = record.cause;
  line["exit_code"] = or_null(record.exit_code);
  if (!record.message.empty()) line["message"] = record.message;
  line["first_step"] = or_null(record.first_step);
  line["last_step"] = or_null(record.last_step);
  line["last_saved_step"] = or_null(record.last_saved_step);
  line["useful_steps"] = useful_steps(record);
  line["seconds"] = {{"start_up", record.seconds.start_up},
                     {"steps", record.seconds.steps},
                     {"evaluation", record.seconds.evaluation},
                     {"save", record.seconds.save},
                     {"data_wait", record.seconds.data_wait}};
  return line;
}

AttemptHistory parse_attempts(const std::string& text_of_file) {
  AttemptHistory history;
  std::map<std::int64_t, AttemptRecord> records;
  std::istringstream lines(text_of_file);
  for (std::string one; std::getline(lines, one);) {
    if (one.empty()) continue;
    const json line = json::parse(one, nullptr, false);
    const std::int64_t last = records.empty() ? 0 : records.rbegin()->first;
    const std::int64_t attempt = line.is_object() ? integer(line, "attempt", last + kMostLostAttempts).value_or(0) : 0;
    const auto time = line.is_object() ? number(line, "time") : std::nullopt;
    const std::string event = line.is_object() ? text(line, "event") : "";
    const bool is_start = event == "start";
    if (attempt < 1 || !time || (!is_start && !records.contains(attempt)) ||
        (!is_start && event != "begin" && event != "end")) {
      ++history.num_damaged_lines;
      continue;
    }
    AttemptRecord& record = records[attempt];
    record.number = attempt;
    if (is_start) {
      read_start(record, line);
    } else if (event == "begin") {
      record.begin = time;
      record.first_step = integer(line, "first_step");
    } else {
      read_end(record, line);
    }
  }
  for (auto& [_, record] : records) history.attempts.push_back(std::move(record));
  return history;
}

RunMetrics::RunMetrics(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return;  // opening a pipe would wait
  std::ifstream file(path);
  for (std::string one; std::getline(file, one);) {
    const json line = json::parse(one, nullptr, false);
    const auto step = line.is_object() ? integer(line, "step") : std::nullopt;
    if (!step) continue;
    const auto seconds = [&line](const char* key) { return std::max(0.0, number(line, key).value_or(0)) / 1e3; };
    Rest& of_step = from_[*step];
    of_step.time = std::max(of_step.time, number(line, "time").value_or(0));
    of_step.seconds.steps += seconds("step_time_ms");
    of_step.seconds.data_wait += seconds("data_wait_ms");
    of_step.seconds.evaluation += seconds("evaluation_ms");
    of_step.seconds.save += seconds("checkpoint_ms");
    if (line.contains("checkpoint_bytes")) last_saved_step_ = step;
  }
  Rest later;
  for (auto entry = from_.rbegin(); entry != from_.rend(); ++entry) {
    Rest& rest = entry->second;
    rest.time = std::max(rest.time, later.time);
    rest.seconds.steps += later.seconds.steps;
    rest.seconds.data_wait += later.seconds.data_wait;
    rest.seconds.evaluation += later.seconds.evaluation;
    rest.seconds.save += later.seconds.save;
    later = rest;
  }
}

void RunMetrics::complete(AttemptRecord& record) const {
  record.end = std::max(record.start, record.begin.value_or(record.start));
  if (!record.first_step) return;
  if (record.begin) record.seconds.start_up = std::max(0.0, *record.begin - record.start);
  record.last_step = record.first_step;
  // Of an attempt before, perhaps; the file is cut back to the checkpoint at each resume.
  if (last_saved_step_) record.last_saved_step = last_saved_step_;
  const auto own = from_.upper_bound(*record.first_step);
  if (own == from_.end()) return;
  record.last_step = from_.rbegin()->first;
  record.end = std::max(*record.end, own->second.time);
  const double start_up = record.seconds.start_up;
  record.seconds = own->second.seconds;
  record.seconds.start_up = start_up;
}

}  // namespace pharos::train
