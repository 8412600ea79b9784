#include "pharos/launch/report.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <set>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/comm/flight.h"
#include "pharos/launch/evidence.h"

namespace pharos::launch {
namespace {

constexpr std::size_t kNumLogLines = 10;
constexpr std::size_t kMaxDetailedRanks = 3;
constexpr std::size_t kMaxOtherRanks = 16;

std::string name_of(std::int64_t rank) { return "rank " + std::to_string(rank); }

/// "rank 1", "ranks 1, 3, 4".
std::string names_of(const std::vector<std::int64_t>& ranks) {
  std::vector<std::string> numbers;
  for (const std::int64_t rank : ranks) numbers.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + base::join(numbers, ", ");
}

/// Everything that the ranks left behind, put together.
struct Findings {
  std::vector<std::size_t> failed;  ///< failures_in_order()
  std::vector<std::optional<comm::RankState>> states;
  std::vector<std::string> waiting;  ///< who waited for whom
  std::vector<std::filesystem::path> hang_files;
  std::vector<std::int64_t> stopped;
  std::vector<std::int64_t> culprits;  ///< of a hang; empty: none, or nobody knows
  bool is_hang = false;                ///< a watchdog ended the job
};

Findings find_out(const AttemptRecord& attempt) {
  Findings found;
  found.failed = failures_in_order(attempt.ends);
  if (found.failed.empty()) return found;
  for (const RankEnd& end : attempt.ends) {
    found.states.push_back(find_flight_record(attempt.run_folder, end));
    if (end.was_stopped) found.stopped.push_back(end.rank);
    const auto file = find_hang_file(attempt.run_folder, end.rank, attempt.start_time);
    if (file) found.hang_files.push_back(*file);
  }
  const bool is_early = !attempt.early_verdict.lines.empty();
  const comm::HangVerdict verdict = is_early ? attempt.early_verdict : judge_now(attempt.run_folder, attempt.ends);
  found.waiting = verdict.lines;
  const RankEnd& first = attempt.ends[found.failed[0]];
  found.is_hang = first.signal == 0 && first.code == static_cast<int>(base::ExitCode::kTrainingFailure) &&
                  (!found.hang_files.empty() || !found.stopped.empty());
  if (found.is_hang) found.culprits = found.stopped.empty() ? verdict.culprits : found.stopped;
  return found;
}

std::string failure_in_words(const RankEnd& end) {
  if (end.was_told_to) return name_of(end.rank) + " did not end by itself and " + describe(end);
  std::string text = name_of(end.rank) + " " + describe(end);
  if (end.was_passed_on) text += ", which the launcher had got and passed on";
  return text;
}

std::string headline(const AttemptRecord& attempt, const Findings& found) {
  const RankEnd& first = attempt.ends[found.failed[0]];
  if (!found.is_hang) return failure_in_words(first);
  std::string text = "the job hung";
  if (!found.culprits.empty()) text += ": " + names_of(found.culprits) + " held up the others";
  if (!found.stopped.empty()) text += " by standing still (SIGSTOP or a debugger)";
  return text + "; " + name_of(first.rank) + " gave up first and " + describe(first);
}

std::string disagreement(const std::vector<RankEnd>& ends) {
  std::vector<std::string> parts;
  for (const RankEnd& end : ends) {
    if (parts.size() < kMaxOtherRanks) parts.push_back(name_of(end.rank) + " " + describe(end));
  }
  return "the ranks did not agree how to end: " + base::join(parts, ", ");
}

class Text {
 public:
  void line(const std::string& text) { text_ += text + "\n"; }
  void detail(const std::string& text) { line("  " + text); }
  void list(const std::string& title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    detail(title);
    for (const std::string& text : lines) line("    " + printable(text));
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_details(Text& text, const AttemptRecord& attempt, const Findings& found, std::size_t i) {
  const RankEnd& end = attempt.ends[i];
  if (end.signal == SIGKILL && !end.was_told_to) {
    text.detail("if nobody sent it, the kernel did for want of memory: see `dmesg`");
  }
  if (const auto& state = found.states[i]) {
    std::string text_of_state =
        name_of(end.rank) + " was in phase " + state->phase + ", " + std::to_string(state->step) + " steps completed";
    if (!state->activity.empty()) text_of_state += ", at the " + state->activity;
    if (state->progress_ns > 0) {
      text_of_state += ", last progress " + base::format_duration(end.time_ns - state->progress_ns) + " before its end";
    }
    text.detail(text_of_state);
  }
  for (const std::string& span : describe_spans(attempt.run_folder, end)) {
    text.detail(name_of(end.rank) + " was " + (span.starts_with("in ") ? span : "between spans, " + span));
  }
  text.list("last lines of " + attempt.logs[i].path.string() + ":", last_lines(attempt.logs[i], kNumLogLines));
}

void add_others(Text& text, const AttemptRecord& attempt, const Findings& found, const std::set<std::size_t>& shown) {
  const std::int64_t first_ns = attempt.ends[found.failed[0]].time_ns;
  std::vector<std::size_t> others(found.failed);
  for (std::size_t i = 0; i < attempt.ends.size(); ++i) {
    if (!is_failure(attempt.ends[i])) others.push_back(i);
  }
  std::erase_if(others, [&shown](std::size_t i) { return shown.contains(i); });
  for (std::size_t n = 0; n < std::min(others.size(), kMaxOtherRanks); ++n) {
    const RankEnd& end = attempt.ends[others[n]];
    char delay[48];
    std::snprintf(delay, sizeof delay, "%.2f s %s", std::abs(static_cast<double>(end.time_ns - first_ns)) / 1e9,
                  end.time_ns < first_ns ? "before" : "later");
    text.detail(failure_in_words(end) + " (" + delay + ")");
  }
  if (others.size() > kMaxOtherRanks) {
    text.detail("and " + std::to_string(others.size() - kMaxOtherRanks) + " more ranks ended");
  }
}

}  // namespace

comm::HangVerdict judge_now(const std::filesystem::path& run_folder, const std::vector<RankEnd>& ranks) {
  std::vector<comm::RankState> known;
  for (const RankEnd& end : ranks) {
    auto state = find_flight_record(run_folder, end);
    if (!state) continue;
    state->has_ended = end.time_ns != 0;
    known.push_back(std::move(*state));
  }
  return comm::judge(known);
}

std::string describe_attempt(const AttemptRecord& attempt) {
  const Findings found = find_out(attempt);
  Text text;
  if (found.failed.empty()) {
    const bool agree = std::all_of(attempt.ends.begin(), attempt.ends.end(),
                                   [&](const RankEnd& end) { return end.code == attempt.ends[0].code; });
    if (!agree) text.line("launcher: " + disagreement(attempt.ends) + ".");
    return text.take();
  }
  text.line("launcher: " + headline(attempt, found) + ".");
  std::set<std::size_t> shown;
  for (const std::int64_t rank : found.culprits) {
    const auto i = static_cast<std::size_t>(rank);
    if (i < attempt.ends.size() && shown.size() < kMaxDetailedRanks) shown.insert(i);
  }
  if (shown.empty()) shown.insert(found.failed[0]);
  for (const std::size_t i : shown) add_details(text, attempt, found, i);
  text.list("who waited for whom:", found.waiting);
  std::vector<std::string> files;
  for (const auto& file : found.hang_files) files.push_back(reason_of_hang(file) + ": " + file.string());
  text.list("written when the time was up:", files);
  add_others(text, attempt, found, shown);
  return text.take();
}

std::string summarize_attempt(const AttemptRecord& attempt) {
  const Findings found = find_out(attempt);
  return found.failed.empty() ? disagreement(attempt.ends) : headline(attempt, found);
}

std::int64_t last_step(const AttemptRecord& attempt) {
  std::optional<std::int64_t> step;
  for (const RankEnd& end : attempt.ends) {
    const auto state = find_flight_record(attempt.run_folder, end);
    if (state) step = std::max(step.value_or(0), state->step);
  }
  return step ? *step : last_recorded_step(attempt.run_folder);
}

}  // namespace pharos::launch
