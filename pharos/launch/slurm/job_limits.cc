#include "pharos/launch/slurm/job_limits.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace {

constexpr std::int64_t kMostSignalSeconds = 65'535;
constexpr std::int64_t kDefaultSignalSeconds = 60;
constexpr std::array kSignalNames = {"HUP",  "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1",
                                     "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU"};

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
                         .where = "--time",
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

std::int64_t parse_signal(std::string_view text) {
  std::string_view rest = text;
  if (const std::size_t colon = rest.find(':'); colon != std::string_view::npos) {
    if (const std::string where = upper(rest.substr(0, colon)); where != "B" && where != "R")
      refuse_signal(text, "only B and R stand before a colon");
    rest = rest.substr(colon + 1);
  }
  std::int64_t seconds = kDefaultSignalSeconds;
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    const auto number = parse_number(rest.substr(at + 1));
    if (!number || *number > kMostSignalSeconds)
      refuse_signal(text, "the seconds are no whole number up to " + std::to_string(kMostSignalSeconds));
    seconds = *number;
    rest = rest.substr(0, at);
  }
  std::string name = upper(rest);
  if (name.starts_with("SIG")) name = name.substr(3);
  const auto number = parse_number(rest);
  const bool is_known = number ? *number >= 1 && *number <= 64
                               : std::find(kSignalNames.begin(), kSignalNames.end(), name) != kSignalNames.end();
  if (!is_known) refuse_signal(text, "SLURM knows no signal '" + std::string(rest) + "'");
  return seconds;
}

}  // namespace pharos::launch::slurm
