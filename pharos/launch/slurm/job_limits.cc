#include "pharos/launch/slurm/job_limits.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace {

constexpr std::int64_t kMostSignalSeconds = 65'535;
constexpr std::pair<std::string_view, int> kSignals[] = {
    {"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"ABRT", SIGABRT}, {"KILL", SIGKILL},
    {"ALRM", SIGALRM}, {"TERM", SIGTERM}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"URG", SIGURG},
    {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"TSTP", SIGTSTP}, {"TTIN", SIGTTIN}, {"TTOU", SIGTTOU}};

std::optional<std::int64_t> parse_number(std::string_view text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char letter) { return std::toupper(letter); });
  return result;
}

[[noreturn]] void refuse_time(std::string_view text) {
  throw base::UserError({.what = "'" + std::string(text) + "' is no time limit.",
                         .where = "--time or $SBATCH_TIMELIMIT",
                         .fix = "Write minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes "
                                "or days-hours:minutes:seconds, for example --time 12:00:00."});
}

[[noreturn]] void refuse_signal(std::string_view text, const std::string& why) {
  throw base::UserError({.what = "'" + std::string(text) + "' is no signal before the time limit: " + why + ".",
                         .where = "--signal",
                         .fix = "Write [{R|B}:]SIGNAL[@SECONDS], for example --signal TERM@120."});
}

}  // namespace

std::optional<std::int64_t> parse_time_limit(std::string_view text) {
  const std::string word = upper(text);
  if (word == "INFINITE" || word == "UNLIMITED" || word == "-1") return std::nullopt;
  const std::size_t dash = text.find('-');
  const bool has_days = dash != std::string_view::npos;
  std::vector<std::int64_t> parts;
  for (std::size_t start = has_days ? dash + 1 : 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(':', start), text.size());
    const auto number = parse_number(text.substr(start, end - start));
    if (!number) refuse_time(text);
    parts.push_back(*number);
    start = end + 1;
  }
  if (parts.size() > 3) refuse_time(text);
  std::int64_t seconds = 0;
  if (has_days) {
    const auto days = parse_number(text.substr(0, dash));
    if (!days) refuse_time(text);
    parts.resize(3);
    seconds = *days * 86'400 + parts[0] * 3600 + parts[1] * 60 + parts[2];
  } else if (parts.size() == 3) {
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2];
  } else {
    seconds = parts[0] * 60 + (parts.size() == 2 ? parts[1] : 0);
  }
  if (seconds == 0) return std::nullopt;
  return (seconds + 59) / 60 * 60;
}

LimitSignal parse_signal(std::string_view text) {
  std::string_view rest = text;
  LimitSignal signal;
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    if (const std::string where = upper(rest.substr(0, colon)); where != "B" && where != "R")
      refuse_signal(text, "only B and R stand before a colon");
    else
      signal.is_of_shell = where == "B";
    rest = rest.substr(colon + 1);
  }
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    const auto number = parse_number(rest.substr(at + 1));
    if (!number || *number > kMostSignalSeconds)
      refuse_signal(text, "the seconds are no whole number up to " + std::to_string(kMostSignalSeconds));
    signal.seconds = *number;
    rest = rest.substr(0, at);
  }
  std::string name = upper(rest);
  if (name.starts_with("SIG")) name = name.substr(3);
  const auto number = parse_number(rest);
  const auto* named =
      std::find_if(std::begin(kSignals), std::end(kSignals), [&](const auto& known) { return known.first == name; });
  if (number && *number >= 1 && *number <= 64) {
    signal.number = static_cast<int>(*number);
  } else if (named != std::end(kSignals)) {
    signal.number = named->second;
  } else {
    refuse_signal(text, "SLURM knows no signal '" + std::string(rest) + "'");
  }
  return signal;
}

std::string first_of_array(std::string_view text) {
  const auto refuse = [text](std::string_view part, const std::string& why) {
    std::string what = "--array ";
    what.append(text).append(" is no list of task numbers: '").append(part).append("' ").append(why).append(".");
    throw base::UserError(
        {.what = what, .where = "--array", .fix = "Write it as sbatch reads it, for example 1-4, 1-9:2 or 1,3,5%2."});
  };
  const auto read = [&](std::string_view digits) {
    const auto number = parse_number(digits);
    if (!number) refuse(digits, "is no whole number of at most 9 digits");
    return number.value_or(0);
  };
  std::string_view list = text;
  if (const std::size_t percent = list.find('%'); percent != std::string_view::npos) {
    if (read(list.substr(percent + 1)) == 0) refuse(list.substr(percent), "lets no task run");
    list = list.substr(0, percent);
  }
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t end = std::min(list.find(',', start), list.size());
    const std::string_view range = list.substr(start, end - start);
    start = end + 1;
    const std::size_t dash = range.find('-');
    const std::int64_t first = read(range.substr(0, dash));
    if (dash == std::string_view::npos) continue;
    const std::string_view rest = range.substr(dash + 1);
    const std::size_t colon = rest.find(':');
    if (read(rest.substr(0, colon)) < first) refuse(range, "ends before it begins");
    if (colon != std::string_view::npos && read(rest.substr(colon + 1)) == 0) refuse(range, "has steps of 0");
  }
  return std::to_string(read(list.substr(0, list.find_first_not_of("0123456789"))));
}

}  // namespace pharos::launch::slurm
