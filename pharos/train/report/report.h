// What a run says about its steps: Megatron's log line every log_interval, a line of metrics.jsonl every step, progress
// on a terminal, evaluation results.
#pragma once

#include <cstdint>
#include <optional>

#include "pharos/config/run_config.h"
#include "pharos/train/report/log_line.h"
#include "pharos/train/report/metrics_log.h"
#include "pharos/train/report/progress.h"

namespace pharos::train {

/// One executed iteration.
struct StepRecord {
  std::int64_t step = 0;  ///< completed iterations, this one included
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_samples = 0;
  std::int64_t global_batch_size = 0;
  int num_microbatches = 0;
  double loss = 0;
  double learning_rate = 0;       ///< used in this step
  double next_learning_rate = 0;  ///< what Megatron's line prints
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
  Reporter(const config::RunConfig& config, std::int64_t train_iters, Console& console, MetricsLog& metrics);

  void step(const StepRecord& record);
  /// place: "iteration 100", …; `metric`: "validation_loss" or "test_loss".
  void evaluation(const std::string& place, const std::string& metric, std::int64_t step, double loss,
                  std::int64_t duration_ns);

 private:
  void print_interval(const StepRecord& record);
  void print_memory(std::int64_t step);
  void append_metrics(const StepRecord& record);

  const config::RunConfig& config_;
  std::int64_t train_iters_;
  Console& console_;
  MetricsLog& metrics_;
  // Of the log interval that runs.
  std::int64_t interval_steps_ = 0, interval_advanced_ = 0, interval_skipped_ = 0, interval_nan_ = 0;
  std::int64_t interval_ns_ = 0;
  double interval_loss_ = 0, interval_flops_ = 0;
  bool any_line_ = false;
  double smoothed_step_seconds_ = 0;
};

}  // namespace pharos::train
