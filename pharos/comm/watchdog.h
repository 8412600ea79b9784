// The watchdog: a thread that notices when this rank makes no progress, writes down where it is, and ends the process,
// so that a hang never lasts longer than the time-out and never leaves anyone guessing. Knows no torch.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace pharos::comm {

/// "rank_00003.hang.json" in the trace folder of a run.
std::string hang_file_name(std::int64_t rank);

struct WatchdogOptions {
  std::int64_t rank = 0;
  std::chrono::milliseconds set_up_timeout = std::chrono::minutes(10);  ///< until report_progress("step", 1 or more)
  std::chrono::milliseconds step_timeout = std::chrono::minutes(10);    ///< from then on, but while in phase "save"
  std::chrono::milliseconds save_timeout = std::chrono::minutes(10);    ///< a slow disk of one rank keeps all waiting
  std::filesystem::path folder;                                         ///< for the dump; must exist
  /// Called with the dump's text once it is written. None: one line to stderr, then the process ends with exit code 3.
  std::function<void(const std::string&)> on_hang;
};

/// Watches the process it lives in. It trips when the last report_progress() is older than the time-out, or a call into
/// communication has been waited for that long. Long phases of set-up report their progress or get a longer time-out.
/// The dump is JSON: rank, host, pid, phase, step, seconds_without_progress, timeout_s, reason, pending and finished
/// (the last) calls, each with its age in seconds, and stack (of the thread that made the watchdog). One per process:
/// it uses a real-time signal to ask that thread for its stack.
class Watchdog {
 public:
  /// Called by the thread that trains.
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Once it is known how long steps take. Any thread.
  void set_step_timeout(std::chrono::milliseconds timeout);

 private:
  void watch();
  std::string find_reason(std::int64_t now_ns, std::chrono::milliseconds& timeout) const;
  std::string describe(const std::string& reason, std::chrono::milliseconds timeout, std::int64_t now_ns) const;
  void trip(const std::string& reason, std::chrono::milliseconds timeout, std::int64_t now_ns);

  WatchdogOptions options_;
  std::atomic<std::chrono::milliseconds> step_timeout_;
  std::int64_t start_ns_;
  pthread_t watched_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_leaving_ = false;
  std::thread thread_;
};

}  // namespace pharos::comm
