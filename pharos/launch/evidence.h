// What a rank of a job left behind: its last lines, spans and calls.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/flight.h"
#include "pharos/launch/rank_end.h"

namespace pharos::launch {

/// Record of the process `end.pid` in trace/rank_NNNNN.flight of the run; none where there is none, it cannot be read
/// or another process left it.
std::optional<comm::RankState> find_flight_record(const std::filesystem::path& run_folder, const RankEnd& end);

/// Lines about where the process `end.pid` stood by its trace/rank_N.ring: one for each span that is open, outermost
/// name first and how long it had been open when the process ended; without one the span that ended last. Empty where
/// there is no ring of this process.
std::vector<std::string> describe_spans(const std::filesystem::path& run_folder, const RankEnd& end);

/// trace/rank_NNNNN.hang.json, which a rank's watchdog writes; none unless it was written at or after `since`.
std::optional<std::filesystem::path> find_hang_file(const std::filesystem::path& run_folder, std::int64_t rank,
                                                    std::filesystem::file_time_type since);

/// "reason" of such a file: what did not happen in time.
std::string reason_of_hang(const std::filesystem::path& hang_file);

/// The highest "step" of the last lines of metrics.jsonl; 0 when there is none.
std::int64_t last_recorded_step(const std::filesystem::path& run_folder);

}  // namespace pharos::launch
