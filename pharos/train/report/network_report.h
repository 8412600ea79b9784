// What a run says about the network of its nodes: totals of each step in metrics.jsonl, a line at each log interval.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/profile/counters/counter_sampler.h"
#include "pharos/train/report/metrics_log.h"
#include "pharos/train/report/progress.h"

namespace pharos::train {

/// Lives on the first rank of each node and does nothing on others, or with profiling.network_counters off.
/// metrics.jsonl has the node of rank 0; the other nodes have metrics, log and ring.
class NetworkReport {
 public:
  /// Starts the sampler and says what it found, now or when the devices answer. `step`: completed so far.
  NetworkReport(const config::RunConfig& config, std::int64_t local_rank, std::int64_t step, Console& console,
                MetricsLog& metrics);

  /// Writes what is known of earlier steps; called before the report of the next one, so that lines stay in order.
  void write();
  /// `step` is completed and reported.
  void after_step(std::int64_t step);
  /// No more steps: writes the last one.
  void finish();

 private:
  struct Source;

  void announce();
  void report_failure();
  void write(const std::vector<profile::StepTraffic>& steps);
  void append(const profile::StepTraffic& steps);
  void print();

  std::int64_t log_interval_;
  const config::ProfilingConfig& profiling_;
  Console& console_;
  MetricsLog& metrics_;
  profile::StepTraffic interval_;  ///< since the last line in the log
  bool is_announced_ = false, has_failed_ = false;
  std::shared_ptr<Source> source_;  ///< also the sampler's
  std::optional<profile::CounterSampler> sampler_;
};

}  // namespace pharos::train
