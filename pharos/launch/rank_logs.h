// rank_N.log of a run folder: what ranks other than 0 print.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch {

/// Where the text of one attempt begins in a file that attempts append to.
struct LogPart {
  std::filesystem::path path;
  std::int64_t begin_bytes = 0;
};

/// The last lines that `part` has now, at most `limit`, without empty ones; of a long file no more than the last 256
/// KiB are looked at. Empty when the file is not there.
std::vector<std::string> last_lines(const LogPart& part, std::size_t limit);

/// For a terminal: long lines are cut, then as base::printable().
std::string printable(std::string_view line);

class RankLogs {
 public:
  /// Makes the folder where it is missing and opens rank_1.log … rank_(N-1).log in it to append. UserError when the
  /// folder cannot be written or another job has its logs open.
  RankLogs(std::filesystem::path folder, std::int64_t num_ranks);
  ~RankLogs();
  RankLogs(const RankLogs&) = delete;
  RankLogs& operator=(const RankLogs&) = delete;

  /// Begins a part in every log, with a line that says so.
  void begin_attempt(std::int64_t attempt);
  /// rank_N.log; negative for rank 0, which has the console.
  int descriptor(std::int64_t rank) const;
  /// This attempt's part of rank_N.log; for rank 0 of log.txt.
  const LogPart& part(std::int64_t rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  /// Whether a rank has written run.yaml since this object was made: then the run has begun.
  bool has_run_begun() const;
  /// Leaves the folder as it was found: takes back what was appended, removes files and folder if they were made here.
  void withdraw();

 private:
  struct File {
    int descriptor = -1;
    std::int64_t bytes_before = 0;
    bool is_new = false;
  };
  File open_log(const std::filesystem::path& path) const;

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> new_folders_;  ///< innermost first
  struct stat run_yaml_before_ = {};
  std::vector<File> files_;  ///< of rank 1, 2, …
  std::vector<LogPart> parts_;
};

}  // namespace pharos::launch
