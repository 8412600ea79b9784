#include "pharos/cli/goodput/goodput_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/text.h"
#include "pharos/base/untrusted/printable.h"

namespace pharos::cli {
namespace {

using nlohmann::json;
using train::AttemptAccount;
using train::AttemptRecord;
using train::GoodputReport;
using train::GoodputSeconds;

struct Kind {
  const char* name;
  const char* key;
  double GoodputSeconds::*seconds;
};
constexpr Kind kKinds[] = {
    {"useful steps", "useful_steps", &GoodputSeconds::useful_steps},
    {"lost steps", "lost_steps", &GoodputSeconds::lost_steps},
    {"start-up", "start_up", &GoodputSeconds::start_up},
    {"evaluation", "evaluation", &GoodputSeconds::evaluation},
    {"saving", "save", &GoodputSeconds::save},
    {"waiting between attempts", "waiting", &GoodputSeconds::waiting},
    {"unaccounted", "unaccounted", &GoodputSeconds::unaccounted},
};

std::string time_text(double seconds) { return base::format_local_time(std::llround(seconds * 1e9)).substr(0, 19); }

std::string duration_text(double seconds) { return base::format_duration(std::llround(seconds * 1e9)); }

std::string cause_text(const AttemptAccount& account) {
  if (account.is_open) return "running, or ended without a word";
  const AttemptRecord& record = account.record;
  const std::string cause = base::printable(record.cause);
  return record.exit_code ? fmt::format("{} (code {})", cause, *record.exit_code) : cause;
}

std::string steps_text(const AttemptAccount& account) {
  if (!account.record.first_step) return "none";
  return fmt::format("{} … {}", *account.record.first_step, account.record.last_step.value_or(0));
}

void add_row(std::string& text, const std::vector<std::string>& cells, const std::vector<std::size_t>& widths) {
  std::string row;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    row += cells[i];
    if (i + 1 < cells.size()) row.append(widths[i] - base::count_characters(cells[i]) + 2, ' ');
  }
  text += row + "\n";
}

std::string render_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], base::count_characters(row[i]));
  }
  std::string text;
  for (const auto& row : rows) add_row(text, row, widths);
  return text;
}

std::string render_attempts(const GoodputReport& report) {
  std::vector<std::vector<std::string>> rows{{"attempt", "job", "start", "end", "steps", "useful", "cause"}};
  for (const AttemptAccount& account : report.attempts) {
    const AttemptRecord& record = account.record;
    rows.push_back({std::to_string(record.number), record.job_id.empty() ? "-" : base::printable(record.job_id),
                    time_text(record.start), time_text(record.end.value_or(record.start)), steps_text(account),
                    fmt::format("{} of {}", account.useful_steps, account.steps), cause_text(account)});
  }
  std::string text = render_table(rows);
  for (const AttemptAccount& account : report.attempts) {
    if (!account.record.message.empty())
      text += fmt::format("attempt {}: {}\n", account.record.number, base::printable(account.record.message));
  }
  for (const std::string& failure : report.node_failures) text += base::printable(failure) + "\n";
  return text;
}

std::string render_seconds(const GoodputSeconds& seconds) {
  std::vector<std::vector<std::string>> rows{{"time", "hours", "share", ""}};
  const double wall = std::max(seconds.wall, 1e-9);
  for (const Kind& kind : kKinds) {
    const double value = seconds.*kind.seconds;
    rows.push_back({kind.name, fmt::format("{:9.4f}", value / 3600), fmt::format("{:5.1f} %", 100 * value / wall),
                    duration_text(value)});
  }
  rows.push_back({"whole", fmt::format("{:9.4f}", seconds.wall / 3600), "100.0 %", duration_text(seconds.wall)});
  return render_table(rows) + fmt::format("waiting for data: {} of the steps\n", duration_text(seconds.data_wait)) +
         fmt::format("goodput {:.1f} % of the whole, {:.1f} % without the time between attempts\n",
                     100 * seconds.goodput(), 100 * seconds.goodput_while_running());
}

json seconds_json(const GoodputSeconds& seconds) {
  json parts = json::object();
  for (const Kind& kind : kKinds) parts[kind.key] = seconds.*kind.seconds;
  parts["wall"] = seconds.wall;
  parts["data_wait"] = seconds.data_wait;
  return parts;
}

json totals_json(const GoodputSeconds& seconds, std::int64_t steps, std::int64_t useful_steps) {
  return {{"steps", steps},
          {"useful_steps", useful_steps},
          {"seconds", seconds_json(seconds)},
          {"goodput", seconds.goodput()},
          {"goodput_while_running", seconds.goodput_while_running()}};
}

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json attempt_json(const AttemptAccount& account) {
  const AttemptRecord& record = account.record;
  return {{"attempt", record.number},
          {"start", record.start},
          {"end", or_null(record.end)},
          {"is_open", account.is_open},
          {"cause", record.cause},
          {"exit_code", or_null(record.exit_code)},
          {"message", record.message},
          {"job_id", record.job_id},
          {"restart_count", or_null(record.restart_count)},
          {"hosts", record.hosts},
          {"num_ranks", record.num_ranks},
          {"first_step", or_null(record.first_step)},
          {"last_step", or_null(record.last_step)},
          {"last_saved_step", or_null(record.last_saved_step)},
          {"steps", account.steps},
          {"useful_steps", account.useful_steps},
          {"seconds", seconds_json(account.seconds)}};
}

struct Totals {
  GoodputSeconds seconds;
  std::int64_t steps = 0, useful_steps = 0;
};

Totals totals_of(const std::vector<RunGoodput>& runs) {
  Totals totals;
  for (const RunGoodput& run : runs) {
    totals.seconds += run.report.seconds;
    totals.steps += run.report.steps;
    totals.useful_steps += run.report.useful_steps;
  }
  return totals;
}

}  // namespace

std::string render_goodput(const std::vector<RunGoodput>& runs) {
  std::string text;
  for (const RunGoodput& run : runs) {
    const GoodputReport& report = run.report;
    text += fmt::format("{} · run {} · {} attempt{} · {} of {} steps useful\n", base::printable(run.folder.string()),
                        report.run_id.empty() ? "unknown" : base::printable(report.run_id), report.attempts.size(),
                        report.attempts.size() == 1 ? "" : "s", report.useful_steps, report.steps);
    if (report.num_damaged_lines > 0)
      text += fmt::format("{} damaged lines of {} are passed over\n", report.num_damaged_lines, train::kAttemptsFile);
    text += render_attempts(report) + "\n" + render_seconds(report.seconds);
    if (&run != &runs.back()) text += "\n";
  }
  if (runs.size() < 2) return text;
  const Totals totals = totals_of(runs);
  return text + fmt::format("\nall {} runs · {} of {} steps useful\n", runs.size(), totals.useful_steps, totals.steps) +
         render_seconds(totals.seconds);
}

json goodput_json(const std::vector<RunGoodput>& runs) {
  json list = json::array();
  for (const RunGoodput& run : runs) {
    json attempts = json::array();
    for (const AttemptAccount& account : run.report.attempts) attempts.push_back(attempt_json(account));
    list.push_back({{"folder", run.folder.string()},
                    {"run_id", run.report.run_id},
                    {"num_damaged_lines", run.report.num_damaged_lines},
                    {"node_failures", run.report.node_failures},
                    {"attempts", attempts},
                    {"totals", totals_json(run.report.seconds, run.report.steps, run.report.useful_steps)}});
  }
  const Totals totals = totals_of(runs);
  return {{"runs", list}, {"totals", totals_json(totals.seconds, totals.steps, totals.useful_steps)}};
}

}  // namespace pharos::cli
