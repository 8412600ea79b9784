// What the launcher says about an attempt that did not end well.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pharos/comm/flight.h"
#include "pharos/launch/rank_end.h"
#include "pharos/launch/rank_logs.h"

namespace pharos::launch {

struct AttemptRecord {
  std::vector<RankEnd> ends = {};  ///< by rank
  std::filesystem::path run_folder = {};
  std::vector<LogPart> logs = {};                   ///< by rank
  std::filesystem::file_time_type start_time = {};  ///< what is older in trace/ is not of this attempt
  comm::HangVerdict early_verdict = {};             ///< judge_now() when the first failure was seen
};

/// Who holds up whom by the flight records that the ranks have now. Those of ranks that are gone grow old, so this is
/// best asked at once.
comm::HangVerdict judge_now(const std::filesystem::path& run_folder, const std::vector<RankEnd>& ranks);

/// Lines for people, each ended; empty when all ranks left with the same code and none failed. Where a watchdog ended
/// the job, the rank that held up the others is named first and not the one whose watchdog fired.
std::string describe_attempt(const AttemptRecord& attempt);

/// The same in a few words: "rank 1 was killed by SIGKILL".
std::string summarize_attempt(const AttemptRecord& attempt);

/// The last step that a rank completed: by their flight records, without any by metrics.jsonl.
std::int64_t last_step(const AttemptRecord& attempt);

}  // namespace pharos::launch
