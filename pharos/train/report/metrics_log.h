// metrics.jsonl: one JSON object a line and step, appended as it happens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pharos::train {

class MetricsLog {
 public:
  /// Writes nowhere (ranks other than 0).
  MetricsLog() = default;
  /// Opens the file for appending. Lines of steps after `last_step` (left by a run that went further than its last
  /// checkpoint) and an unfinished last line are removed first, so that the file is the history of one run.
  MetricsLog(std::filesystem::path path, std::int64_t last_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// Appends one line. A disk that is full costs the line, not the run: it is said once on standard error.
  void append(const nlohmann::json& line);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool failed_ = false;
};

}  // namespace pharos::train
