// The thread that reads the counters of a node's network devices. It touches no tensor and takes no signal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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
  /// Reads once, then every 1/hz seconds, in a thread of its own. publish: called there with each sample. `step`:
  /// completed so far. patience: how long this and finish() wait for devices at most; one that hangs must not hold up a
  /// run. std::system_error when there can be no more threads.
  CounterSampler(ReadCounters read, double hz, std::int64_t step, std::function<void(const SampledTraffic&)> publish,
                 std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~CounterSampler() { finish(); }
  CounterSampler(const CounterSampler&) = delete;
  CounterSampler& operator=(const CounterSampler&) = delete;

  /// What traffic counts from; nothing as long as the devices have not answered.
  std::optional<Reading> first_reading() const;

  /// `step` is completed. The thread takes a reading at once, which ends the traffic of that step; nobody waits for it.
  /// Steps that are shorter than a tenth of the sampling period, or than a reading, share one.
  void mark(std::int64_t step);

  /// What was finished since the last call.
  std::vector<StepTraffic> take();

  /// Takes the readings that are due, ends the thread, returns take(). A thread that waits for a device is left behind:
  /// it publishes no more.
  std::vector<StepTraffic> finish();

  /// Why there are no more samples, empty while there are.
  std::string failure() const;

 private:
  class Thread;

  std::chrono::milliseconds patience_;
  std::shared_ptr<Thread> state_;  ///< also the thread's, which may outlive this
  std::thread thread_;
};

}  // namespace pharos::profile
