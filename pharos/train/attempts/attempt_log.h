// Writes attempts.jsonl while a run lives. Nothing here ever throws or ends a run: a disk that is full or a file that
// is damaged costs the account, not the training.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/lens/variables/environment.h"
#include "pharos/train/attempts/attempt_record.h"

namespace pharos::train {

class AttemptLog {
 public:
  /// Keeps account, writes nowhere (ranks other than 0).
  AttemptLog() = default;
  /// Reads what is there in `run_folder`. An attempt without an end was lost: its end is written, by what metrics.jsonl
  /// knows. Make it while no other process runs in the folder, and before metrics.jsonl is cut back to the checkpoint.
  explicit AttemptLog(const std::filesystem::path& run_folder);

  /// The id under which the run was started last; nullopt when it is not known.
  const std::optional<std::string>& run_id() const { return run_id_; }
  /// Sentences about what was found: an attempt that was lost, damaged lines.
  const std::vector<std::string>& notes() const { return notes_; }

  /// This attempt has begun: its start is that of the process; job and restart are the scheduler's.
  void start(const std::string& run_id, const std::vector<std::string>& hosts, std::int64_t num_ranks,
             const lens::Environment& environment);
  /// Set-up is over; `first_step` steps are completed.
  void begin_steps(std::int64_t first_step);
  /// What the attempt has done so far; its owner keeps last_step, last_saved_step and seconds up to date.
  AttemptRecord& current() { return current_; }
  /// Why the attempt ends, where it is not told by what ended it: set before end().
  void set_cause(std::string cause) { current_.cause = std::move(cause); }
  /// The end: set_cause()'s cause or, where there is none, the one that `code` stands for. Only the first call counts.
  void end(base::ExitCode code, const std::string& message = "");

 private:
  void append(const nlohmann::json& line);

  std::filesystem::path path_;  ///< empty: writes nowhere
  AttemptRecord current_;
  std::optional<std::string> run_id_;
  std::vector<std::string> notes_;
  bool has_started_ = false, has_ended_ = false, has_failed_ = false;
};

}  // namespace pharos::train
