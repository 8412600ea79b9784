#include "pharos/lens/metrics/training_metrics.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

using enum InstrumentKind;

/// Saving takes from milliseconds (a toy) to many minutes (a file server in trouble).
constexpr double kSaveBounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
/// A batch that is there already costs microseconds.
constexpr double kWaitBounds[] = {0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 60000};
/// Bounds that the semantic conventions of OpenTelemetry advise for the two.
constexpr double kRequestBounds[] = {0.01, 0.02, 0.04, 0.08,  0.16,  0.32,  0.64,
                                     1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92};
constexpr double kTokenBounds[] = {1,     4,     16,     64,      256,     1024,     4096,
                                   16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864};

// Megatron's gauges have no unit: one would change their names in Prometheus and empty the dashboards.
constexpr MetricDescription kMetrics[] = {
    {"megatron.training.step_duration_ms", kHistogram, false, "ms", "Mean step time of a log interval", {}},
    {"megatron.training.loss", kGauge, false, "", "Mean training loss of a log interval", {}},
    {"megatron.training.throughput_tflops", kGauge, false, "", "Model TFLOP/s of one GPU", {}},
    {"megatron.training.grad_norm", kGauge, false, "", "Global norm of the gradients before clipping", {}},
    {"megatron.training.skipped_iters", kCounter, true, "", "Steps skipped because of infinite gradients", {}},
    {"megatron.training.learning_rate", kGauge, false, "", "Learning rate", {}},
    {"megatron.training.tokens_per_sec", kGauge, false, "", "Tokens per second of the whole job", {}},
    {"megatron.training.memory_allocated_gb", kGauge, false, "", "Peak allocated memory of the process, GiB", {}},
    {"megatron.validation.loss", kGauge, false, "", "Validation loss of the last evaluation", {}},
    {"megatron.train.loss_scale", kGauge, false, "", "Loss scale of fp16 training", {}},
    {"megatron.train.nan_iterations", kCounter, true, "", "Steps whose loss was not finite", {}},
    {"megatron.train.consumed_tokens",
     kCounter,
     true,
     "{token}",
     "Tokens the job trained on since this process began",
     {}},
    {"megatron.train.last_progress_seconds",
     kObservableGauge,
     false,
     "s",
     "Unix time at which a step last finished",
     {}},
    {"megatron.train.data_wait_ms", kHistogram, false, "ms", "Time a step waited for its batch", kWaitBounds},
    {"megatron.moe.load_max_over_mean", kGauge, false, "", "Load of the busiest expert over the mean, worst layer", {}},
    {"megatron.moe.load_entropy", kGauge, false, "", "Evenness of the experts' loads from 0 to 1, worst layer", {}},
    {"megatron.moe.dead_experts", kGauge, false, "", "Experts that no token chose, over all layers", {}},
    {"megatron.moe.dropped_fraction", kGauge, false, "", "Share of expert choices dropped by capacity", {}},
    {"megatron.moe.load_balancing_loss", kGauge, false, "", "Balance of experts over a microbatch", {}},
    {"megatron.moe.seq_load_balancing_loss", kGauge, false, "", "Balance of experts over a sequence", {}},
    {"megatron.moe.global_load_balancing_loss", kGauge, false, "", "Balance of experts over a global batch", {}},
    {"megatron.moe.z_loss", kGauge, false, "", "Squared log-partition of the router's logits", {}},
    {"megatron.train.mtp_loss", kGauge, false, "", "Loss of multi-token prediction, mean over its depths", {}},
    {"megatron.checkpoint.save_bytes", kGauge, false, "By", "Bytes this rank wrote in the last save", {}},
    {"megatron.checkpoint.save_seconds", kHistogram, false, "s", "Time training stood still for a save", kSaveBounds},
    {"megatron.network.bytes", kCounter, true, "By", "Bytes over a port of the node since this process began", {}},
    {"megatron.network.bytes_per_second", kGauge, false, "", "Bytes per second over a port at its last reading", {}},
    {"megatron.network.events", kCounter, true, "", "Errors and other events a port counted", {}},
    {"megatron.telemetry.spans_exported", kObservableCounter, true, "", "Spans delivered by every exporter", {}},
    {"megatron.telemetry.spans_dropped", kObservableCounter, true, "", "Spans lost before an exporter saw them", {}},
    {"megatron.telemetry.spans_failed", kObservableCounter, true, "", "Spans an exporter could not deliver", {}},
    {"megatron.telemetry.points_exported",
     kObservableCounter,
     true,
     "",
     "Metric points delivered by every exporter",
     {}},
    {"megatron.telemetry.points_dropped",
     kObservableCounter,
     true,
     "",
     "Metric points lost before an exporter saw them",
     {}},
    {"megatron.telemetry.points_failed",
     kObservableCounter,
     true,
     "",
     "Metric points an exporter could not deliver",
     {}},
    {"megatron.telemetry.logs_exported", kObservableCounter, true, "", "Log records delivered by every exporter", {}},
    {"megatron.telemetry.logs_dropped",
     kObservableCounter,
     true,
     "",
     "Log records lost before an exporter saw them",
     {}},
    {"megatron.telemetry.logs_failed", kObservableCounter, true, "", "Log records an exporter could not deliver", {}},
    {"megatron.telemetry.queue_depth", kObservableGauge, true, "", "Items that wait for export", {}},
    {"gen_ai.server.request.duration", kHistogram, false, "s", "Latency of a request to the server", kRequestBounds},
    {"gen_ai.client.token.usage", kHistogram, true, "{token}", "Tokens read and made per request", kTokenBounds},
};

InstrumentOptions options_of(const MetricDescription& metric) {
  return {.description = std::string(metric.description),
          .unit = std::string(metric.unit),
          .bounds = {metric.bounds.begin(), metric.bounds.end()}};
}

Gauge<double> make_gauge(Meter& meter, std::string_view name) {
  return meter.create_gauge<double>(name, options_of(find_metric(name)));
}
Counter<std::int64_t> make_counter(Meter& meter, std::string_view name) {
  return meter.create_counter<std::int64_t>(name, options_of(find_metric(name)));
}
Histogram<double> make_histogram(Meter& meter, std::string_view name) {
  return meter.create_histogram<double>(name, options_of(find_metric(name)));
}

struct MegatronInstruments {
  explicit MegatronInstruments(Meter& meter)
      : step_duration_ms(make_histogram(meter, "megatron.training.step_duration_ms")),
        loss(make_gauge(meter, "megatron.training.loss")),
        throughput_tflops(make_gauge(meter, "megatron.training.throughput_tflops")),
        grad_norm(make_gauge(meter, "megatron.training.grad_norm")),
        skipped_iters(make_counter(meter, "megatron.training.skipped_iters")),
        learning_rate(make_gauge(meter, "megatron.training.learning_rate")),
        tokens_per_sec(make_gauge(meter, "megatron.training.tokens_per_sec")),
        memory_allocated_gb(make_gauge(meter, "megatron.training.memory_allocated_gb")) {}

  Histogram<double> step_duration_ms;
  Gauge<double> loss;
  Gauge<double> throughput_tflops;
  Gauge<double> grad_norm;
  Counter<std::int64_t> skipped_iters;
  Gauge<double> learning_rate;
  Gauge<double> tokens_per_sec;
  Gauge<double> memory_allocated_gb;
};

struct OwnInstruments {
  explicit OwnInstruments(Meter& meter)
      : validation_loss(make_gauge(meter, "megatron.validation.loss")),
        loss_scale(make_gauge(meter, "megatron.train.loss_scale")),
        nan_iterations(make_counter(meter, "megatron.train.nan_iterations")),
        consumed_tokens(make_counter(meter, "megatron.train.consumed_tokens")),
        data_wait_ms(make_histogram(meter, "megatron.train.data_wait_ms")),
        save_bytes(make_gauge(meter, "megatron.checkpoint.save_bytes")),
        save_seconds(make_histogram(meter, "megatron.checkpoint.save_seconds")) {}

  Gauge<double> validation_loss;
  Gauge<double> loss_scale;
  Counter<std::int64_t> nan_iterations;
  Counter<std::int64_t> consumed_tokens;
  Histogram<double> data_wait_ms;
  Gauge<double> save_bytes;
  Histogram<double> save_seconds;
};

struct ExpertInstruments {
  explicit ExpertInstruments(Meter& meter)
      : load_max_over_mean(make_gauge(meter, "megatron.moe.load_max_over_mean")),
        load_entropy(make_gauge(meter, "megatron.moe.load_entropy")),
        dead_experts(make_gauge(meter, "megatron.moe.dead_experts")),
        dropped_fraction(make_gauge(meter, "megatron.moe.dropped_fraction")),
        losses{{"load_balancing_loss", make_gauge(meter, "megatron.moe.load_balancing_loss")},
               {"seq_load_balancing_loss", make_gauge(meter, "megatron.moe.seq_load_balancing_loss")},
               {"global_load_balancing_loss", make_gauge(meter, "megatron.moe.global_load_balancing_loss")},
               {"z_loss", make_gauge(meter, "megatron.moe.z_loss")}},
        mtp_loss(make_gauge(meter, "megatron.train.mtp_loss")) {}

  Gauge<double> load_max_over_mean;
  Gauge<double> load_entropy;
  Gauge<double> dead_experts;
  Gauge<double> dropped_fraction;
  std::map<std::string, Gauge<double>, std::less<>> losses;
  Gauge<double> mtp_loss;
};

struct ProgressInstrument {
  explicit ProgressInstrument(Meter& meter) {
    const MetricDescription& metric = find_metric("megatron.train.last_progress_seconds");
    meter.create_observable_gauge<double>(
        metric.name,
        [last = last_ns](Observer& observer) {
          if (const std::int64_t wall_ns = last->load(std::memory_order_relaxed); wall_ns != 0) {
            observer.observe(static_cast<double>(wall_ns) * 1e-9);
          }
        },
        options_of(metric));
  }

  /// Shared: the instrument may outlive this struct when a meter is torn down.
  std::shared_ptr<std::atomic<std::int64_t>> last_ns = std::make_shared<std::atomic<std::int64_t>>(0);
};

struct InferenceInstruments {
  explicit InferenceInstruments(Meter& meter)
      : request_duration(make_histogram(meter, "gen_ai.server.request.duration")),
        token_usage(meter.create_histogram<std::int64_t>("gen_ai.client.token.usage",
                                                         options_of(find_metric("gen_ai.client.token.usage")))) {}

  Histogram<double> request_duration;
  Histogram<std::int64_t> token_usage;
};

struct TelemetryInstruments {
  using Counts = std::function<PipelineCounts()>;
  using Value = std::uint64_t (*)(const PipelineCounts&);

  explicit TelemetryInstruments(Meter& meter) {
    constexpr std::pair<std::string_view, Value> kValues[] = {
        {"megatron.telemetry.spans_exported", [](const PipelineCounts& counts) { return counts.spans.exported; }},
        {"megatron.telemetry.spans_dropped", [](const PipelineCounts& counts) { return counts.spans.dropped; }},
        {"megatron.telemetry.spans_failed", [](const PipelineCounts& counts) { return counts.spans.failed; }},
        {"megatron.telemetry.points_exported", [](const PipelineCounts& counts) { return counts.points.exported; }},
        {"megatron.telemetry.points_dropped", [](const PipelineCounts& counts) { return counts.points.dropped; }},
        {"megatron.telemetry.points_failed", [](const PipelineCounts& counts) { return counts.points.failed; }},
        {"megatron.telemetry.logs_exported", [](const PipelineCounts& counts) { return counts.logs.exported; }},
        {"megatron.telemetry.logs_dropped", [](const PipelineCounts& counts) { return counts.logs.dropped; }},
        {"megatron.telemetry.logs_failed", [](const PipelineCounts& counts) { return counts.logs.failed; }},
        {"megatron.telemetry.queue_depth", [](const PipelineCounts& counts) { return counts.queue_depth; }},
    };
    for (const auto& [name, value] : kValues) {
      const MetricDescription& metric = find_metric(name);
      const auto callback = [source = source, value = value](Observer& observer) {
        const std::lock_guard lock(source->mutex);
        if (source->counts != nullptr) observer.observe(static_cast<std::int64_t>(value(source->counts())));
      };
      if (metric.kind == kObservableGauge) {
        meter.create_observable_gauge<std::int64_t>(name, callback, options_of(metric));
      } else {
        meter.create_observable_counter<std::int64_t>(name, callback, options_of(metric));
      }
    }
  }

  void set(Counts counts) {
    const std::lock_guard lock(source->mutex);
    source->counts = std::move(counts);
  }

  struct Source {
    std::mutex mutex;
    Counts counts;
  };
  std::shared_ptr<Source> source = std::make_shared<Source>();
};

struct CreationWarning {
  explicit CreationWarning(Meter&) {}
  std::atomic<bool> is_said{false};
};

/// The T of the meter; null and a warning when it cannot be made.
template <typename T>
std::shared_ptr<T> instruments_of(Meter& meter) {
  try {
    return meter.companion<T>();
  } catch (const std::exception& error) {
    if (!meter.companion<CreationWarning>()->is_said.exchange(true)) {
      std::fprintf(stderr, "telemetry: Failed to create training metric instruments: %s; these metrics are missing\n",
                   error.what());
    }
    return nullptr;
  }
}

void set(const Gauge<double>& gauge, const std::optional<double>& value) {
  if (value) gauge.set(*value);
}
void record(const Histogram<double>& histogram, const std::optional<double>& value) {
  if (value) histogram.record(*value);
}
void add(const Counter<std::int64_t>& counter, const std::optional<std::int64_t>& value) {
  if (value && *value > 0) counter.add(*value);
}

bool has_own_values(const TrainingSample& sample) {
  return sample.loss_scale || sample.nan_iterations || sample.consumed_tokens || sample.validation_loss ||
         sample.checkpoint_seconds || sample.checkpoint_bytes || !sample.data_wait_ms.empty();
}

void record_experts(Meter& meter, const TrainingSample& sample) {
  if (!sample.expert_load_max_over_mean && sample.auxiliary_losses.empty()) return;
  const auto experts = instruments_of<ExpertInstruments>(meter);
  if (experts == nullptr) return;
  set(experts->load_max_over_mean, sample.expert_load_max_over_mean);
  set(experts->load_entropy, sample.expert_load_entropy);
  set(experts->dead_experts, sample.dead_experts);
  set(experts->dropped_fraction, sample.dropped_fraction);
  double mtp_sum = 0, num_mtp = 0;
  for (const auto& [name, value] : sample.auxiliary_losses) {
    if (const auto gauge = experts->losses.find(name); gauge != experts->losses.end()) gauge->second.set(value);
    if (!name.starts_with("mtp_")) continue;
    mtp_sum += value;
    ++num_mtp;
  }
  if (num_mtp > 0) experts->mtp_loss.set(mtp_sum / num_mtp);
}

}  // namespace

std::span<const MetricDescription> known_metrics() { return kMetrics; }

const MetricDescription& find_metric(std::string_view name) {
  for (const MetricDescription& metric : kMetrics) {
    if (metric.name == name) return metric;
  }
  throw base::InternalError("metric " + std::string(name) + " is not in the table of metrics");
}

void record_training_metrics(Meter& meter, const TrainingSample& sample) {
  if (const auto megatron = instruments_of<MegatronInstruments>(meter)) {
    record(megatron->step_duration_ms, sample.step_duration_ms);
    set(megatron->loss, sample.loss);
    set(megatron->throughput_tflops, sample.throughput_tflops);
    set(megatron->grad_norm, sample.grad_norm);
    add(megatron->skipped_iters, sample.skipped_iters);
    set(megatron->learning_rate, sample.learning_rate);
    set(megatron->tokens_per_sec, sample.tokens_per_sec);
    set(megatron->memory_allocated_gb, sample.memory_allocated_gb);
  }
  record_experts(meter, sample);
  if (!has_own_values(sample)) return;
  const auto own = instruments_of<OwnInstruments>(meter);
  if (own == nullptr) return;
  set(own->loss_scale, sample.loss_scale);
  add(own->nan_iterations, sample.nan_iterations);
  add(own->consumed_tokens, sample.consumed_tokens);
  set(own->validation_loss, sample.validation_loss);
  record(own->save_seconds, sample.checkpoint_seconds);
  set(own->save_bytes, sample.checkpoint_bytes);
  for (const double wait_ms : sample.data_wait_ms) own->data_wait_ms.record(wait_ms);
}

void record_progress(Meter& meter, std::int64_t wall_ns) {
  if (const auto progress = instruments_of<ProgressInstrument>(meter)) {
    progress->last_ns->store(wall_ns, std::memory_order_relaxed);
  }
}

void observe_telemetry(Meter& meter, std::function<PipelineCounts()> counts) {
  if (const auto telemetry = instruments_of<TelemetryInstruments>(meter)) telemetry->set(std::move(counts));
}

void stop_observing_telemetry(Meter& meter) { observe_telemetry(meter, nullptr); }

void record_inference_metrics(Meter& meter, const InferenceSample& sample) {
  const auto instruments = instruments_of<InferenceInstruments>(meter);
  if (instruments == nullptr) return;
  const Attribute operation("gen_ai.operation.name", sample.operation_name);
  const Attribute provider("gen_ai.provider.name", sample.provider_name);
  const Attribute model = sample.model.empty() ? Attribute() : Attribute("gen_ai.request.model", sample.model);
  if (sample.request_duration_s) {
    instruments->request_duration.record(*sample.request_duration_s, {operation, provider, model});
  }
  if (sample.input_tokens) {
    instruments->token_usage.record(*sample.input_tokens, {operation, provider, model, {"gen_ai.token.type", "input"}});
  }
  if (sample.output_tokens) {
    instruments->token_usage.record(*sample.output_tokens,
                                    {operation, provider, model, {"gen_ai.token.type", "output"}});
  }
}

}  // namespace pharos::lens
