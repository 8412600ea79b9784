// What a run says about its steps: Megatron's log line every log_interval, a line of metrics.jsonl every step, progress
// on a terminal, evaluation results.
#pragma once

#include <cstdint>
#include <optional>

#include "pharos/config/run_config.h"
#include "pharos/train/experts/routing.h"
#include "pharos/train/report/board_feed.h"
#include "pharos/train/report/log_line.h"
#include "pharos/train/report/metrics_log.h"
#include "pharos/train/report/progress.h"
#include "pharos/train/report/telemetry_feed.h"

namespace pharos::train {

/// One executed iteration.
struct StepRecord {
  std::int64_t step = 0;  ///< completed iterations, this one included
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_samples = 0;
  std::int64_t global_batch_size = 0;
  int num_microbatches = 0;
  double loss = 0;
  RoutingLosses auxiliary_losses;  ///< of routers and of multi-token prediction, by Megatron's names
  Routing routing;                 ///< empty without experts
  double learning_rate = 0;        ///< used in this step
  double next_learning_rate = 0;   ///< what Megatron's line prints
  double weight_decay = 0;
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<std::int64_t> num_zeros;
  std::optional<double> params_norm;
  bool skipped = false;  ///< the optimizer left the parameters as they were
  std::int64_t step_time_ns = 0;
  std::int64_t data_wait_ns = 0;
  std::int64_t forward_backward_ns = 0;
  std::int64_t optimizer_ns = 0;
  double flops = 0;  ///< of this step's global batch, causal attention counted once (megatron-telemetry 9.6)
  double full_attention_flops = 0;  ///< the same with attention counted over all pairs of tokens
};

class Reporter {
 public:
  /// Whose report it is. Files that belong to the whole job (TensorBoard) are rank 0's.
  struct Place {
    std::int64_t rank = 0;
    std::int64_t world_size = 1;
  };
  /// `run_yaml`: the resolved configuration as text, for TensorBoard.
  Reporter(const config::RunConfig& config, std::int64_t train_iters, const std::string& run_yaml, Place place,
           Console& console, MetricsLog& metrics);

  /// peak_memory_bytes: of the device, or of the process where it computes on the CPU.
  void step(const StepRecord& record, std::int64_t peak_memory_bytes);
  /// place: "iteration 100", …; `metric`: "validation_loss" or "test_loss".
  void evaluation(const std::string& place, const std::string& metric, std::int64_t step, double loss,
                  std::int64_t duration_ns);
  /// A line with the memory of the process; when: "after 100 iterations".
  void memory(const std::string& when);
  void checkpoint(std::int64_t step, std::int64_t size_bytes, std::int64_t duration_ns);

 private:
  /// Sums over the steps since the last line that was due; Megatron's extra line of the first step takes nothing away.
  struct Interval {
    std::int64_t steps = 0, advanced = 0, skipped = 0, nan = 0;
    std::int64_t duration_ns = 0;
    double loss = 0, flops = 0;
    RoutingLosses auxiliary_losses;
    double mean_seconds() const { return static_cast<double>(duration_ns) / 1e9 / static_cast<double>(steps); }
    /// Of each device.
    double tflops(std::int64_t world_size) const {
      return flops / static_cast<double>(steps) / mean_seconds() / 1e12 / static_cast<double>(world_size);
    }
  };
  void add(const StepRecord& record);
  double interval_loss(const StepRecord& record) const;
  /// The same of the auxiliary losses.
  RoutingLosses interval_auxiliary_losses(const StepRecord& record) const;
  void print_routing(const Routing& routing);
  void print_interval(const StepRecord& record);
  void record_interval(const StepRecord& record, std::int64_t peak_memory_bytes);
  void append_metrics(const StepRecord& record, std::int64_t peak_memory_bytes, bool is_logged);

  const config::RunConfig& config_;
  std::int64_t train_iters_;
  Place place_;
  Console& console_;
  MetricsLog& metrics_;
  TelemetryFeed telemetry_;
  BoardFeed board_;
  Interval interval_;
  std::int64_t recorded_skipped_ = 0, recorded_nan_ = 0;  ///< of this interval, counted in metrics already
  bool any_line_ = false;
  std::int64_t consumed_samples_ = 0;
  double smoothed_step_seconds_ = 0;
};

}  // namespace pharos::train
