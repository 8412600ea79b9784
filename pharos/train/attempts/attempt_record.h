// attempts.jsonl of a run folder: every start of the run and how it ended (docs/cluster/requeue.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pharos::train {

/// Seconds of one attempt by what they went into. `data_wait` is a part of `steps`.
struct AttemptSeconds {
  double start_up = 0;  ///< from the start of the process until the first step could begin
  double steps = 0;
  double evaluation = 0;
  double save = 0;
  double data_wait = 0;
};

/// One start of a run. Times are seconds since 1970 on rank 0's clock.
struct AttemptRecord {
  std::int64_t number = 1;
  double start = 0;  ///< of rank 0's process
  std::string run_id = {};
  std::string job_id = {};  ///< of the scheduler; empty: none
  std::optional<std::int64_t> restart_count = {};
  std::vector<std::string> hosts = {};
  std::int64_t num_ranks = 1;

  std::optional<double> begin = {};             ///< when the first step could begin; absent: it ended before
  std::optional<std::int64_t> first_step = {};  ///< completed steps at that time

  /// Absent in an attempt that runs or that ended without a word.
  std::optional<double> end = {};
  std::string cause = {};  ///< "done", "signal SIGTERM", "time limit", "exit interval", …, "lost"
  std::optional<int> exit_code = {};
  std::string message = {};
  std::optional<std::int64_t> last_step = {};        ///< completed steps at its end
  std::optional<std::int64_t> last_saved_step = {};  ///< of the newest checkpoint known to it
  AttemptSeconds seconds = {};
};

inline constexpr const char* kAttemptsFile = "attempts.jsonl";

/// The lines of the file, one for each thing that happened to an attempt: its start, the begin of its steps, its end.
nlohmann::json start_line(const AttemptRecord& record);
nlohmann::json begin_line(const AttemptRecord& record);
nlohmann::json end_line(const AttemptRecord& record);

struct AttemptHistory {
  std::vector<AttemptRecord> attempts;  ///< in order of their numbers
  std::int64_t num_damaged_lines = 0;   ///< lines that are no record or hold absurd numbers, passed over
};

/// From the text of the file, which may be damaged anywhere.
AttemptHistory parse_attempts(const std::string& text);

/// What the run's metrics.jsonl says; a file that is missing or damaged tells less.
class RunMetrics {
 public:
  explicit RunMetrics(const std::filesystem::path& path);
  /// Completes an attempt without an end by the steps after its first: last step, last save, seconds, and in `end` the
  /// time of the last line.
  void complete(AttemptRecord& record) const;

 private:
  struct Rest {
    double time = 0;  ///< the latest
    AttemptSeconds seconds;
  };
  std::map<std::int64_t, Rest> from_;  ///< by step: all lines of this step and of later ones
  std::optional<std::int64_t> last_saved_step_;
};

}  // namespace pharos::train
