#include "pharos/base/clock.h"

#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace pharos::base {
namespace {

std::int64_t read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::string format_time(std::int64_t wall_time_ns, bool utc) {
  const time_t seconds = wall_time_ns / 1'000'000'000;
  const long microseconds = (wall_time_ns % 1'000'000'000) / 1000;
  tm parts{};
  if (utc) {
    gmtime_r(&seconds, &parts);
  } else {
    localtime_r(&seconds, &parts);
  }
  char date[32];
  strftime(date, sizeof date, utc ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S", &parts);
  char text[48];
  std::snprintf(text, sizeof text, "%s.%06ld%s", date, microseconds, utc ? "Z" : "");
  return text;
}

}  // namespace

std::int64_t monotonic_ns() { return read_clock(CLOCK_MONOTONIC); }

std::int64_t wall_ns() { return read_clock(CLOCK_REALTIME); }

std::int64_t steady_wall_ns() {
  static const std::int64_t offset = wall_ns() - monotonic_ns();
  return monotonic_ns() + offset;
}

std::optional<std::int64_t> start_of_process_monotonic_ns(std::int64_t process) {
  // Field 22 of /proc/PID/stat: start in clock ticks since boot. The command name may hold spaces, so read past ')'.
  std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  const auto close = text.rfind(')');
  if (close == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(close + 1));
  std::string word;
  for (int field = 3; field <= 21; ++field) fields >> word;
  long long ticks = 0;
  if (!(fields >> ticks)) return std::nullopt;
  const std::int64_t since_boot = ticks * (1'000'000'000 / sysconf(_SC_CLK_TCK));
  const std::int64_t suspended = read_clock(CLOCK_BOOTTIME) - monotonic_ns();
  return since_boot - suspended;
}

std::int64_t process_start_monotonic_ns() { return start_of_process_monotonic_ns(::getpid()).value_or(monotonic_ns()); }

std::string format_local_time(std::int64_t wall_time_ns) { return format_time(wall_time_ns, false); }

std::string format_utc_time(std::int64_t wall_time_ns) { return format_time(wall_time_ns, true); }

}  // namespace pharos::base
