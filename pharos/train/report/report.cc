#include "pharos/train/report/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pharos/base/clock.h"
#include "pharos/base/memory.h"

namespace pharos::train {
namespace {

double milliseconds(std::int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e6; }

/// Model FLOP utilisation in percent of the device's peak.
double utilisation(double flops, double seconds, double peak_tflops) {
  return 100 * flops / seconds / (peak_tflops * 1e12);
}

}  // namespace

Reporter::Reporter(const config::RunConfig& config, std::int64_t train_iters, Console& console, MetricsLog& metrics)
    : config_(config), train_iters_(train_iters), console_(console), metrics_(metrics) {}

void Reporter::step(const StepRecord& record) {
  ++interval_steps_;
  interval_ns_ += record.step_time_ns;
  interval_flops_ += record.flops;
  const bool is_finite = std::isfinite(record.loss);
  if (record.skipped) {
    ++interval_skipped_;
    if (!is_finite) ++interval_nan_;
  } else {
    ++interval_advanced_;
    interval_loss_ += record.loss;
  }
  const double seconds = static_cast<double>(record.step_time_ns) / 1e9;
  // The first step carries one-time work; a moving average follows changes of speed within some twenty steps.
  smoothed_step_seconds_ = smoothed_step_seconds_ == 0 || interval_steps_ + record.step <= 3
                               ? seconds
                               : 0.95 * smoothed_step_seconds_ + 0.05 * seconds;
  append_metrics(record);
  const bool is_due = config_.logger.log_interval > 0 && record.step % config_.logger.log_interval == 0;
  if ((is_due || !any_line_) && !config_.logger.skip_train_metrics_log) print_interval(record);
  const auto memory_interval = config_.logger.log_memory_interval;
  if (memory_interval && record.step % *memory_interval == 0) print_memory(record.step);
  const double tokens = static_cast<double>(record.global_batch_size * config_.model.seq_length);
  console_.progress({record.step, train_iters_, record.loss, smoothed_step_seconds_, tokens / smoothed_step_seconds_});
}

void Reporter::print_interval(const StepRecord& record) {
  const double seconds = static_cast<double>(interval_ns_) / 1e9 / static_cast<double>(interval_steps_);
  LogLine line;
  line.wall_ns = base::wall_ns();
  line.iteration = record.step;
  line.train_iters = train_iters_;
  line.consumed_samples = record.consumed_samples;
  line.skipped_samples = record.skipped_samples;
  line.elapsed_ms_per_iteration = seconds * 1e3;
  const double tflops = interval_flops_ / static_cast<double>(interval_steps_) / seconds / 1e12;
  if (config_.logger.log_throughput) line.tflops_per_device = tflops;
  line.learning_rate = record.next_learning_rate;
  line.global_batch_size = record.global_batch_size;
  // With every iteration skipped there is no average; the last loss says more than nothing.
  line.losses = {
      {"lm loss", interval_advanced_ > 0 ? interval_loss_ / static_cast<double>(interval_advanced_) : record.loss}};
  line.loss_scale = record.loss_scale;
  line.grad_norm = record.grad_norm;
  line.num_zeros = record.num_zeros;
  line.params_norm = record.params_norm;
  line.num_skipped_iterations = interval_skipped_;
  line.num_nan_iterations = interval_nan_;
  console_.log_line(render_log_line(line));
  if (config_.logger.log_throughput) {
    std::string text = fmt::format("Step Time : {:.2f}s GPU utilization: {:.1f}MODEL_TFLOP/s/GPU", seconds, tflops);
    if (config_.logger.peak_tflops_per_device) {
      const double peak = *config_.logger.peak_tflops_per_device;
      const double full = record.full_attention_flops / std::max(record.flops, 1.0);
      text += fmt::format(" MFU: {:.1f}% MFU with full attention: {:.1f}%", 100 * tflops / peak,
                          100 * tflops * full / peak);
    }
    console_.log_line(text);
  }
  any_line_ = true;
  interval_steps_ = interval_advanced_ = interval_skipped_ = interval_nan_ = interval_ns_ = 0;
  interval_loss_ = interval_flops_ = 0;
}

void Reporter::print_memory(std::int64_t step) {
  const base::ProcessMemory memory = base::process_memory();
  console_.log_line(fmt::format(
      "[Rank 0] (after {} iterations) memory (GB) | resident: {:.3f} | max resident: {:.3f} |", step,
      static_cast<double>(memory.resident_bytes) / 1e9, static_cast<double>(memory.peak_resident_bytes) / 1e9));
}

void Reporter::append_metrics(const StepRecord& record) {
  const double seconds = static_cast<double>(record.step_time_ns) / 1e9;
  const std::int64_t tokens = record.global_batch_size * config_.model.seq_length;
  nlohmann::json line = {{"step", record.step},
                         {"time", static_cast<double>(base::wall_ns()) / 1e9},
                         {"loss", record.loss},
                         {"learning_rate", record.learning_rate},
                         {"weight_decay", record.weight_decay},
                         {"loss_scale", record.loss_scale},
                         {"global_batch_size", record.global_batch_size},
                         {"num_microbatches", record.num_microbatches},
                         {"consumed_samples", record.consumed_samples},
                         {"consumed_tokens", record.consumed_samples * config_.model.seq_length},
                         {"skipped", record.skipped},
                         {"step_time_ms", milliseconds(record.step_time_ns)},
                         {"data_wait_ms", milliseconds(record.data_wait_ns)},
                         {"forward_backward_ms", milliseconds(record.forward_backward_ns)},
                         {"optimizer_ms", milliseconds(record.optimizer_ns)},
                         {"tokens_per_second", static_cast<double>(tokens) / seconds},
                         {"tflops_per_device", record.flops / seconds / 1e12}};
  if (!std::isfinite(record.loss))
    line["non_finite_loss"] = fmt::format("{}", record.loss);  // JSON has no NaN: loss is null
  if (record.grad_norm) line["grad_norm"] = *record.grad_norm;
  if (record.num_zeros) line["num_zeros"] = *record.num_zeros;
  if (record.params_norm) line["params_norm"] = *record.params_norm;
  if (config_.logger.peak_tflops_per_device) {
    const double peak = *config_.logger.peak_tflops_per_device;
    line["mfu_percent"] = utilisation(record.flops, seconds, peak);
    line["mfu_full_attention_percent"] = utilisation(record.full_attention_flops, seconds, peak);
  }
  metrics_.append(line);
}

void Reporter::evaluation(const std::string& place, const std::string& metric, std::int64_t step, double loss,
                          std::int64_t duration_ns) {
  console_.line(render_validation_lines(place, loss));
  metrics_.append({{"step", step}, {metric, loss}, {"evaluation_ms", milliseconds(duration_ns)}});
}

}  // namespace pharos::train
