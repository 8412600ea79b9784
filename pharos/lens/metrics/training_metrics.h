// The metrics Pharos exports: the eight of Megatron's dashboards (megatron-telemetry.md section 3) under their own
// rules, and what those leave out (section 10.3). Points carry no attributes but those of the network, which say
// device, port and what was counted (network_metrics.h); the step number is never one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pharos/lens/metrics/meter.h"

namespace pharos::lens {

struct MetricDescription {
  std::string_view name;
  InstrumentKind kind;
  bool is_integer;
  std::string_view unit;  ///< UCUM; empty: none
  std::string_view description;
  std::span<const double> bounds;  ///< of a histogram; empty: kDefaultBounds
};

/// Every metric that Pharos can export, the eight of Megatron first. Instruments, documents and tests are made from it.
std::span<const MetricDescription> known_metrics();

/// The entry of that name; an InternalError if there is none.
const MetricDescription& find_metric(std::string_view name);

/// What a training loop knows at the end of a log interval. Absent values are skipped, zero is recorded; counters take
/// positive values only.
struct TrainingSample {
  // Megatron's eight.
  std::optional<double> step_duration_ms = {};     ///< mean of the interval
  std::optional<double> loss = {};                 ///< mean of the interval
  std::optional<double> throughput_tflops = {};    ///< TFLOP/s of one GPU
  std::optional<double> grad_norm = {};            ///< last step
  std::optional<std::int64_t> skipped_iters = {};  ///< in the interval
  std::optional<double> learning_rate = {};
  std::optional<double> tokens_per_sec = {};       ///< whole job, with padding
  std::optional<double> memory_allocated_gb = {};  ///< peak of the process, GiB
  // Pharos's own.
  std::optional<double> loss_scale = {};
  std::optional<std::int64_t> nan_iterations = {};   ///< in the interval
  std::optional<std::int64_t> consumed_tokens = {};  ///< in the interval
  std::optional<double> validation_loss = {};        ///< of an evaluation since the last sample
  std::optional<double> checkpoint_seconds = {};  ///< of a save since the last sample: time the step loop stood still
  std::optional<double> checkpoint_bytes = {};    ///< written by this rank in that save
  std::span<const double> data_wait_ms = {};      ///< one per step of the interval: time it waited for its batch
  // Of models with experts or multi-token prediction.
  std::optional<double> expert_load_max_over_mean = {};  ///< of the layer where it is largest, last step
  std::optional<double> expert_load_entropy = {};        ///< of the layer where it is smallest, last step; 1: balanced
  std::optional<double> dead_experts = {};               ///< that no token chose, over all layers, last step
  std::optional<double> dropped_fraction = {};           ///< of the choices, last step
  /// Means of the interval, by the names of Megatron's log line: "load_balancing_loss", "mtp_1 loss", …; those that
  /// have a metric are recorded, of multi-token prediction the mean over its depths.
  std::vector<std::pair<std::string, double>> auxiliary_losses = {};
};

/// Records a sample. The eight instruments are created together by the first call for a meter, Pharos's own by the
/// first sample that holds one of their values; they are released with the meter. If an instrument cannot be created
/// this says "Failed to create training metric instruments" on standard error once for the meter, keeps nothing and
/// returns; the next call tries again.
void record_training_metrics(Meter& meter, const TrainingSample& sample);

/// A step is finished at `wall_ns` (Unix). From the first call on, every collection exports
/// megatron.train.last_progress_seconds: that it comes says the process lives, its value when it last got on. Cheap
/// enough for every step.
void record_progress(Meter& meter, std::int64_t wall_ns);

/// Items of one signal since telemetry began: exported, dropped before an exporter saw them, failed in an exporter.
struct SignalCounts {
  std::uint64_t exported = 0;
  std::uint64_t dropped = 0;
  std::uint64_t failed = 0;
};

struct PipelineCounts {
  SignalCounts spans = {};
  SignalCounts points = {};  ///< metric data points
  SignalCounts logs = {};
  std::uint64_t queue_depth = 0;  ///< items waiting for export
};

/// Exports megatron.telemetry.* from what `counts` says at each collection. It is called several times a collection, in
/// the collecting thread, and must be thread-safe and cheap. A second call for a meter replaces the first.
void observe_telemetry(Meter& meter, std::function<PipelineCounts()> counts);

/// `counts` of observe_telemetry() is not called from here on; waits for a running call.
void stop_observing_telemetry(Meter& meter);

/// One request of an inference server (lens.md section 11). Absent values are skipped.
struct InferenceSample {
  std::optional<double> request_duration_s = {};
  std::optional<std::int64_t> input_tokens = {};
  std::optional<std::int64_t> output_tokens = {};
  std::string_view model = {};  ///< empty: no gen_ai.request.model
  std::string_view operation_name = "text_completion";
  std::string_view provider_name = "nemo";
};

/// Records into gen_ai.server.request.duration and gen_ai.client.token.usage. A failure to create them is told as in
/// record_training_metrics().
void record_inference_metrics(Meter& meter, const InferenceSample& sample);

}  // namespace pharos::lens
