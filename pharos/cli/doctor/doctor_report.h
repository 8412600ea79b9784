// What `pharos doctor` has found so far, and showing it once: at the end, or when the time is up.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "pharos/launch/doctor/finding.h"

namespace pharos::cli {

class DoctorReport {
 public:
  /// `json_path`: empty, a file, or "-" for standard output, which then has no table.
  explicit DoctorReport(std::string json_path) : json_path_(std::move(json_path)) {}
  ~DoctorReport();
  DoctorReport(const DoctorReport&) = delete;
  DoctorReport& operator=(const DoctorReport&) = delete;

  void add(const launch::Findings& findings);
  bool has_failure() const;
  /// From now on: when base::monotonic_ns() reaches `deadline_ns` before stop_watching(), the report is shown with one
  /// more failure and the process leaves with code 2, whatever its other threads wait for. `may_show`: false leaves
  /// silently.
  void watch(std::int64_t deadline_ns, bool may_show);
  void stop_watching();
  /// Table, or JSON, once; sets nothing. UserError when the file cannot be written.
  void show();

 private:
  void show_locked();
  launch::Verdict worst() const;

  std::string json_path_;
  mutable std::mutex mutex_;
  launch::Findings findings_;
  bool is_shown_ = false;
  bool is_done_ = false;
  std::condition_variable done_;
  std::thread watcher_;
};

/// 0, or 2 when something must be fixed before training.
int exit_code_of(launch::Verdict verdict);

}  // namespace pharos::cli
