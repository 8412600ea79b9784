#include "pharos/train/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/memory.h"

namespace pharos::train {
namespace {

/// Since 1970.
double wall_seconds() { return static_cast<double>(base::wall_ns()) / 1e9; }

double milliseconds(std::int64_t duration_ns) { return static_cast<double>(duration_ns) / 1e6; }

/// Model FLOP utilisation in percent of the device's peak.
double utilisation(double flops, double seconds, double peak_tflops) {
  return 100 * flops / seconds / (peak_tflops * 1e12);
}

/// "mtp_1_loss" for "mtp_1 loss".
std::string metric_key(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

nlohmann::json to_json(const std::vector<RoutedLayer>& layers) {
  nlohmann::json list = nlohmann::json::array();
  for (const RoutedLayer& layer : layers) {
    nlohmann::json item = {{"layer", layer.number},
                           {"load_max_over_mean", layer.load.max_over_mean},
                           {"dead_experts", layer.load.num_dead},
                           {"load_entropy", layer.load.entropy},
                           {"dropped_fraction", layer.load.dropped_fraction}};
    for (const auto& [name, value] : layer.losses) item[name] = value;
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

Reporter::Reporter(const config::RunConfig& config, std::int64_t train_iters, const std::string& run_yaml, Place place,
                   Console& console, MetricsLog& metrics)
    : config_(config),
      train_iters_(train_iters),
      place_(place),
      console_(console),
      metrics_(metrics),
      board_(config, run_yaml, place.rank == 0, place.world_size, console) {}

void Reporter::add(const StepRecord& record) {
  ++interval_.steps;
  interval_.duration_ns += record.step_time_ns;
  interval_.flops += record.flops;
  if (record.skipped) {
    ++interval_.skipped;
    if (!std::isfinite(record.loss)) ++interval_.nan;
  } else {
    ++interval_.advanced;
    interval_.loss += record.loss;
    interval_.auxiliary_losses.resize(record.auxiliary_losses.size());
    for (std::size_t i = 0; i < record.auxiliary_losses.size(); ++i)
      interval_.auxiliary_losses[i].second += record.auxiliary_losses[i].second;
  }
}

void Reporter::step(const StepRecord& record, std::int64_t peak_memory_bytes) {
  add(record);
  const double seconds = static_cast<double>(record.step_time_ns) / 1e9;
  const std::int64_t tokens = record.global_batch_size * config_.model.seq_length;
  // The first step carries one-time work; a moving average follows changes of speed within some twenty steps.
  smoothed_step_seconds_ = smoothed_step_seconds_ == 0 || interval_.steps + record.step <= 3
                               ? seconds
                               : 0.95 * smoothed_step_seconds_ + 0.05 * seconds;
  const bool is_due = config_.logger.log_interval > 0 && record.step % config_.logger.log_interval == 0;
  const bool is_logged = is_due || !any_line_;
  append_metrics(record, peak_memory_bytes, is_logged);
  telemetry_.step(record.data_wait_ns, tokens);
  if (is_logged) {
    if (!config_.logger.skip_train_metrics_log) print_interval(record);
    record_interval(record, peak_memory_bytes);
    any_line_ = true;
  }
  consumed_samples_ = record.consumed_samples;
  board_.step(record, is_due ? std::optional(interval_.mean_seconds()) : std::nullopt, peak_memory_bytes);
  if (is_due) {
    interval_ = {};
    recorded_skipped_ = recorded_nan_ = 0;
  }
  const auto memory_interval = config_.logger.log_memory_interval;
  if (memory_interval && record.step % *memory_interval == 0) memory(fmt::format("after {} iterations", record.step));
  console_.progress({record.step, train_iters_, record.loss, smoothed_step_seconds_,
                     static_cast<double>(tokens) / smoothed_step_seconds_});
}

/// With every iteration skipped there is no average; the last loss says more than nothing.
double Reporter::interval_loss(const StepRecord& record) const {
  return interval_.advanced > 0 ? interval_.loss / static_cast<double>(interval_.advanced) : record.loss;
}

RoutingLosses Reporter::interval_auxiliary_losses(const StepRecord& record) const {
  RoutingLosses losses = record.auxiliary_losses;
  if (interval_.advanced == 0) return losses;
  for (std::size_t i = 0; i < losses.size(); ++i)
    losses[i].second = interval_.auxiliary_losses[i].second / static_cast<double>(interval_.advanced);
  return losses;
}

void Reporter::print_routing(const Routing& routing) {
  if (routing.layers.empty()) return;
  console_.log_line(render_load(worst_load(routing.layers)));
  if (!config_.model.moe_per_layer_logging) return;
  for (const RoutedLayer& layer : routing.layers) console_.log_line(render_layer(layer));
}

void Reporter::print_interval(const StepRecord& record) {
  LogLine line;
  line.wall_ns = base::wall_ns();
  line.iteration = record.step;
  line.train_iters = train_iters_;
  line.consumed_samples = record.consumed_samples;
  line.skipped_samples = record.skipped_samples;
  line.elapsed_ms_per_iteration = interval_.mean_seconds() * 1e3;
  if (config_.logger.log_throughput) line.tflops_per_device = interval_.tflops(place_.world_size);
  line.learning_rate = record.next_learning_rate;
  line.global_batch_size = record.global_batch_size;
  line.losses = interval_auxiliary_losses(record);
  line.losses.emplace(line.losses.begin(), "lm loss", interval_loss(record));
  line.loss_scale = record.loss_scale;
  line.grad_norm = record.grad_norm;
  line.num_zeros = record.num_zeros;
  line.params_norm = record.params_norm;
  line.num_skipped_iterations = interval_.skipped;
  line.num_nan_iterations = interval_.nan;
  console_.log_line(render_log_line(line));
  print_routing(record.routing);
  if (!config_.logger.log_throughput) return;
  const double tflops = interval_.tflops(place_.world_size);
  std::string text =
      fmt::format("Step Time : {:.2f}s GPU utilization: {:.1f}MODEL_TFLOP/s/GPU", interval_.mean_seconds(), tflops);
  if (config_.logger.peak_tflops_per_device) {
    const double peak = *config_.logger.peak_tflops_per_device;
    const double full = record.full_attention_flops / std::max(record.flops, 1.0);
    text +=
        fmt::format(" MFU: {:.1f}% MFU with full attention: {:.1f}%", 100 * tflops / peak, 100 * tflops * full / peak);
  }
  console_.log_line(text);
}

/// The metrics of megatron-telemetry.md section 3, after the line as there. Counters count nothing twice.
void Reporter::record_interval(const StepRecord& record, std::int64_t peak_memory_bytes) {
  const double seconds = interval_.mean_seconds();
  lens::TrainingSample sample;
  sample.step_duration_ms = seconds * 1e3;
  sample.loss = interval_loss(record);
  if (config_.logger.log_throughput) sample.throughput_tflops = interval_.tflops(place_.world_size);
  sample.grad_norm = record.grad_norm;
  sample.skipped_iters = interval_.skipped - std::exchange(recorded_skipped_, interval_.skipped);
  sample.nan_iterations = interval_.nan - std::exchange(recorded_nan_, interval_.nan);
  sample.learning_rate = record.next_learning_rate;
  if (seconds > 0) {
    sample.tokens_per_sec = static_cast<double>(record.global_batch_size * config_.model.seq_length) / seconds;
  }
  sample.memory_allocated_gb = static_cast<double>(peak_memory_bytes) / 0x1p30;
  sample.loss_scale = record.loss_scale;
  if (!record.routing.layers.empty()) {
    const WorstLoad load = worst_load(record.routing.layers);
    sample.expert_load_max_over_mean = load.max_over_mean;
    sample.dead_experts = static_cast<double>(load.num_dead);
    sample.expert_load_entropy = load.entropy;
    sample.dropped_fraction = load.dropped_fraction;
  }
  sample.auxiliary_losses = interval_auxiliary_losses(record);
  telemetry_.record(sample);
}

void Reporter::memory(const std::string& when) {
  const base::ProcessMemory memory = base::process_memory();
  console_.log_line(fmt::format("[Rank {}] ({}) memory (GB) | resident: {:.3f} | max resident: {:.3f} |", place_.rank,
                                when, static_cast<double>(memory.resident_bytes) / 1e9,
                                static_cast<double>(memory.peak_resident_bytes) / 1e9));
}

void Reporter::append_metrics(const StepRecord& record, std::int64_t peak_memory_bytes, bool is_logged) {
  const double seconds = static_cast<double>(record.step_time_ns) / 1e9;
  const std::int64_t tokens = record.global_batch_size * config_.model.seq_length;
  const auto devices = static_cast<double>(place_.world_size);
  const double device_flops = record.flops / devices;
  nlohmann::json line = {{"step", record.step},
                         {"time", wall_seconds()},
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
                         {"tflops_per_device", device_flops / seconds / 1e12}};
  if (!std::isfinite(record.loss))
    line["non_finite_loss"] = fmt::format("{}", record.loss);  // JSON has no NaN: loss is null
  line["peak_memory_bytes"] = peak_memory_bytes;
  if (record.grad_norm) line["grad_norm"] = *record.grad_norm;
  if (record.num_zeros) line["num_zeros"] = *record.num_zeros;
  if (record.params_norm) line["params_norm"] = *record.params_norm;
  for (const auto& [name, value] : record.auxiliary_losses) line[metric_key(name)] = value;
  if (is_logged && !record.routing.layers.empty()) line["expert_layers"] = to_json(record.routing.layers);
  if (config_.logger.peak_tflops_per_device) {
    const double peak = *config_.logger.peak_tflops_per_device;
    line["mfu_percent"] = utilisation(device_flops, seconds, peak);
    line["mfu_full_attention_percent"] = utilisation(record.full_attention_flops / devices, seconds, peak);
  }
  metrics_.append(line);
}

void Reporter::evaluation(const std::string& place, const std::string& metric, std::int64_t step, double loss,
                          std::int64_t duration_ns) {
  console_.line(render_validation_lines(place, loss));
  metrics_.append(
      {{"step", step}, {"time", wall_seconds()}, {metric, loss}, {"evaluation_ms", milliseconds(duration_ns)}});
  if (metric == "validation_loss") telemetry_.evaluation(loss);
  board_.evaluation(step, consumed_samples_, metric == "test_loss" ? "test" : "", loss);
}

void Reporter::checkpoint(std::int64_t step, std::int64_t size_bytes, std::int64_t duration_ns) {
  metrics_.append({{"step", step},
                   {"time", wall_seconds()},
                   {"checkpoint_bytes", size_bytes},
                   {"checkpoint_ms", milliseconds(duration_ns)}});
  telemetry_.checkpoint(static_cast<double>(duration_ns) / 1e9, static_cast<double>(size_bytes));
}

}  // namespace pharos::train
