// How a rank of a local job ended, and what that makes of the job.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pharos::launch {

struct RankEnd {
  std::int64_t rank = 0;
  pid_t pid = 0;
  int code = 0;                ///< exit code, where `signal` is 0
  int signal = 0;              ///< that ended it; 0: it left by itself
  std::int64_t time_ns = 0;    ///< CLOCK_MONOTONIC when the launcher saw it; several seen at once have the same
  bool was_stopped = false;    ///< stood still (SIGSTOP, a debugger) when another rank had failed
  bool was_told_to = false;    ///< the launcher had sent SIGTERM or SIGKILL of its own accord before
  bool was_passed_on = false;  ///< `signal` is one that the launcher had got and passed on
};

/// "was killed by SIGKILL", "left with code 3 (training failure)".
std::string describe(const RankEnd& end);

/// "SIGKILL"; "signal 64" where it has no name.
std::string signal_name(int signal);

/// Neither finished (0) nor interrupted after saving (4).
bool is_failure(const RankEnd& end);

/// What the job leaves with: 0 or 4 when no rank failed, else the code of the rank that failed first (2, 3, 16 and 17
/// as they are, any other and a signal as 3).
int exit_code_of(const std::vector<RankEnd>& ends);

/// Positions in `ends` of the ranks that failed, in the order to blame them: first those that the launcher had not told
/// to end, by time; of those seen at once a signal comes before a user error, this before any other code (a rank that
/// dies takes its peers' connections along, and they leave with a training failure); then by rank.
std::vector<std::size_t> failures_in_order(const std::vector<RankEnd>& ends);

}  // namespace pharos::launch
