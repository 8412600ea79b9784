// The thread that reads the counters of a node's network devices. It touches no tensor and takes no signal.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pharos/profile/counters/traffic.h"

namespace pharos::profile {

/// Between two readings. Times are CLOCK_MONOTONIC.
struct SampledTraffic {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  PortTraffic ports = {};
};

/// Of the steps since the mark before, usually one.
struct StepTraffic {
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t duration_ns = 0;
  PortTraffic ports = {};
};

class CounterSampler {
 public:
  /// Takes the first reading, then one every 1/hz seconds in a thread of its own. publish: called there with each
  /// sample. `step`: completed so far. std::system_error when there can be no more threads.
  CounterSampler(ReadCounters read, double hz, std::int64_t step, std::function<void(const SampledTraffic&)> publish);
  ~CounterSampler() { finish(); }
  CounterSampler(const CounterSampler&) = delete;
  CounterSampler& operator=(const CounterSampler&) = delete;

  /// `step` is completed. The thread takes a reading at once, which ends the traffic of that step; nobody waits for it.
  /// Steps that are shorter than a tenth of the sampling period share one.
  void mark(std::int64_t step);

  /// What was finished since the last call.
  std::vector<StepTraffic> take();

  /// Takes the readings that are due, ends the thread, returns take().
  std::vector<StepTraffic> finish();

  /// Why there are no more samples, empty while there are.
  std::string failure() const;

 private:
  void run();
  void sample(std::optional<std::int64_t> step);

  const ReadCounters read_;
  const std::chrono::nanoseconds period_;
  const std::function<void(const SampledTraffic&)> publish_;

  // Of the thread alone.
  TrafficMeter meter_;
  std::int64_t last_sample_ns_ = 0;
  std::int64_t last_mark_ns_ = 0;
  std::int64_t last_step_ = 0;
  PortTraffic since_mark_;

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable wake_;
  std::optional<std::int64_t> marked_step_;
  bool is_leaving_ = false;
  std::vector<StepTraffic> finished_;
  std::string failure_;

  std::thread thread_;
};

}  // namespace pharos::profile
