// The flight record: a small memory-mapped file per rank with the last calls into communication, readable by others
// while the rank runs, hangs, or after it was killed. Knows no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::comm {

enum class Operation : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
  kAllToAll
};

/// "all_reduce", …
const char* operation_name(Operation operation);

/// One call. Times are CLOCK_MONOTONIC; 0: not yet.
struct Flight {
  std::string group;
  std::vector<std::int64_t> ranks;  ///< members of the group, global
  /// From 1: of the group's collectives, or of the transfers in this direction with this peer. 0: its connections.
  std::uint64_t number = 0;
  Operation operation = Operation::kAllReduce;
  std::string purpose;
  std::int64_t bytes = 0;
  std::int64_t peer = -1;       ///< global rank, of send and receive
  std::int64_t arrival_ns = 0;  ///< this rank made the call
  std::int64_t start_ns = 0;    ///< it was handed to the transport
  std::int64_t end_ns = 0;      ///< its result was there (as far as this rank has looked)
  std::int64_t wait_ns = 0;     ///< this rank began to wait for its result
  bool is_pending() const { return arrival_ns != 0 && end_ns == 0; }
};

/// What a rank last said about itself.
struct RankState {
  std::int64_t rank = 0, world_size = 1, pid = 0;
  std::string host;
  std::string phase;             ///< "set-up", "step", "evaluation", "save", "leaving"
  std::int64_t step = 0;         ///< completed
  std::int64_t progress_ns = 0;  ///< CLOCK_MONOTONIC of the last step or phase
  std::string activity;          ///< "forward of microbatch 3 on stage 1": what it was at last in a pipeline; or empty
  std::int64_t alive_ns = 0;     ///< when the watchdog last showed itself; 0: there is none
  bool has_ended = false;        ///< set by who has seen the process end; its record cannot say so
  std::vector<Flight> flights;   ///< oldest first; pending ones are never pushed out by finished ones
};

/// "rank_00003.flight" in the trace folder of a run.
std::string flight_file_name(std::int64_t rank);

/// Starts this process's record at `path`; before it, calls are only counted. One per process.
void start_flight_record(const std::filesystem::path& path, std::int64_t rank, std::int64_t world_size);
/// Says where this rank is.
void report_progress(std::string_view phase, std::int64_t step);
/// Says which action of a pipeline the training thread is at: {"forward", 3, 1}. `what`: at most 31 characters; empty:
/// none. Cheap enough for every action.
void report_activity(std::string_view what, std::int64_t microbatch, std::int64_t stage);

/// Reads a record, of a living or a dead process. UserError when the file is none.
RankState read_flight_record(const std::filesystem::path& path);

/// Who holds up whom, from the records of all ranks that left one; see docs/parallelism.md for the rule.
struct HangVerdict {
  /// Ranks that others wait for and that wait for nobody; else those that wait for each other in a circle, called
  /// different things at the same number, or are in a call that does not end but show no life. Empty: nobody waits.
  std::vector<std::int64_t> culprits;
  std::vector<std::string> lines;  ///< for people: each waiting group with call, number, purpose, who came, who not
};
HangVerdict judge(const std::vector<RankState>& ranks);

}  // namespace pharos::comm
