// One monotonic clock for all durations; wall time only where it meets people or other systems.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pharos::base {

/// Nanoseconds of CLOCK_MONOTONIC.
std::int64_t monotonic_ns();

/// Nanoseconds since the Unix epoch.
std::int64_t wall_ns();

/// Nanoseconds since the Unix epoch that follow CLOCK_MONOTONIC from the first call on: they never step back.
std::int64_t steady_wall_ns();

/// When the kernel started this process, on the clock of monotonic_ns() (resolution: one clock tick, usually 10 ms).
std::int64_t process_start_monotonic_ns();

/// The same of a process of this machine; nullopt when there is none of that number or it cannot be looked at.
std::optional<std::int64_t> start_of_process_monotonic_ns(std::int64_t process);

/// `wall_time_ns` as local time "YYYY-MM-DD HH:MM:SS.ffffff" (the stamp of Megatron's log line).
std::string format_local_time(std::int64_t wall_time_ns);

/// `wall_time_ns` as UTC ISO-8601 with microseconds and Z.
std::string format_utc_time(std::int64_t wall_time_ns);

}  // namespace pharos::base
