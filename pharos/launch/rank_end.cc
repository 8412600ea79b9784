#include "pharos/launch/rank_end.h"

#include <string.h>

#include <algorithm>
#include <tuple>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

using base::ExitCode;

constexpr int code_of(ExitCode code) { return static_cast<int>(code); }

const char* meaning(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kDone:
      return "done";
    case ExitCode::kUserError:
      return "user error: configuration, file or environment";
    case ExitCode::kTrainingFailure:
      return "training failure";
    case ExitCode::kInterrupted:
      return "interrupted, state saved";
    case ExitCode::kRerunRestart:
      return "restart to find out whether a fault is transient";
    case ExitCode::kRerunFailed:
      return "a result could not be reproduced";
  }
  return code == 127 ? "the program could not be started" : "not a code of pharos";
}

/// Lower: more likely the cause, of ends seen at the same time.
int suspicion(const RankEnd& end) {
  if (end.signal != 0) return 0;
  return end.code == code_of(ExitCode::kUserError) ? 1 : 2;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string describe(const RankEnd& end) {
  if (end.signal != 0) return "was killed by " + signal_name(end.signal);
  return "left with code " + std::to_string(end.code) + " (" + meaning(end.code) + ")";
}

bool is_failure(const RankEnd& end) {
  return end.signal != 0 || (end.code != code_of(ExitCode::kDone) && end.code != code_of(ExitCode::kInterrupted));
}

std::vector<std::size_t> failures_in_order(const std::vector<RankEnd>& ends) {
  std::vector<std::size_t> failed;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (is_failure(ends[i])) failed.push_back(i);
  }
  const auto key = [&ends](std::size_t i) {
    const RankEnd& end = ends[i];
    return std::tuple(end.was_told_to, end.time_ns, suspicion(end), end.rank);
  };
  std::sort(failed.begin(), failed.end(), [&key](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return failed;
}

int exit_code_of(const std::vector<RankEnd>& ends) {
  const std::vector<std::size_t> failed = failures_in_order(ends);
  if (failed.empty()) {
    const bool is_done = std::all_of(ends.begin(), ends.end(), [](const RankEnd& end) { return end.code == 0; });
    return code_of(is_done ? ExitCode::kDone : ExitCode::kInterrupted);
  }
  const RankEnd& first = ends[failed[0]];
  const bool is_known = first.signal == 0 && (first.code == code_of(ExitCode::kUserError) ||
                                              first.code == code_of(ExitCode::kRerunRestart) ||
                                              first.code == code_of(ExitCode::kRerunFailed));
  return is_known ? first.code : code_of(ExitCode::kTrainingFailure);
}

}  // namespace pharos::launch
