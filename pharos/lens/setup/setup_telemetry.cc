#include "pharos/lens/setup/setup_telemetry.h"

#include <algorithm>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/lens/otlp/options.h"
#include "pharos/lens/setup/run_id.h"
#include "pharos/lens/setup/strategies.h"

namespace pharos::lens {
namespace {

BatchOptions batch_options(const BatchSettings& settings) {
  return {.schedule_delay = std::chrono::milliseconds(settings.schedule_delay_ms),
          .max_queue = static_cast<std::size_t>(settings.max_queue_size),
          .max_batch = static_cast<std::size_t>(settings.max_export_batch_size)};
}

/// What the ring keeps even while telemetry is off, when a bad specification is only warned of.
GroupMask ring_groups(const LensSettings& settings) {
  if (settings.config.enabled) return settings.groups;
  try {
    return resolved_groups(settings.config);
  } catch (const base::UserError&) {
    return parse_groups("default");
  }
}

void check_run_folder(const LensConfig& config, const SetupInput& input) {
  if (!config.enabled || config.exporter != "file" || !input.run_folder.empty()) return;
  throw base::UserError({.what = "The exporter 'file' has no run folder to write to.",
                         .why = "Only a run of `pharos train` has one.",
                         .fix = "Use otlp or console here."});
}

/// The environment's sampler and, where it is on, that of the rank: a span is recorded if both agree. Null: all spans.
SamplerPointer make_sampler_of(const LensConfig& config, const SdkSettings& settings, int rank) {
  const bool is_default = settings.sampler.is_parent_based && settings.sampler.ratio >= 1.0;
  if (is_default && !config.sampler_enabled) return nullptr;
  SamplerPointer sampler =
      settings.sampler.ratio >= 1.0 ? make_always_on_sampler() : make_trace_id_ratio_sampler(settings.sampler.ratio);
  if (settings.sampler.is_parent_based) sampler = make_parent_based_sampler(sampler);
  if (!config.sampler_enabled) return sampler;
  return make_composed_sampler({sampler, make_rank_aware_sampler(rank, config.export_sample_rate)});
}

RecordLimits record_limits(const LimitSettings& settings) {
  const auto count = [](std::int64_t limit) {
    return static_cast<std::uint32_t>(std::min<std::int64_t>(limit, 1 << 30));
  };
  const auto length = [](const std::optional<std::int64_t>& limit) {
    return limit ? static_cast<std::size_t>(*limit) : RecordLimits::kUnlimited;
  };
  return {.span_attributes = count(settings.span_attributes),
          .event_attributes = count(settings.event_attributes),
          .events = count(settings.span_events),
          .links = count(settings.span_links),
          .span_text_characters = length(settings.span_attribute_length),
          .event_text_characters = length(settings.span_attribute_length)};
}

/// What an exporting rank does beyond its ring.
void choose_exporters(const LensConfig& config, const SdkSettings& settings, const std::optional<otlp::Options>& otlp,
                      const SetupInput& input, TelemetryOptions& options) {
  if (settings.is_disabled) return;
  options.collects_metrics = config.metrics_enabled;
  options.collects_logs = config.logs_enabled;
  options.handles_signals = input.handles_signals;
  options.metrics = {.temporality = settings.temporality,
                     .histogram_aggregation = settings.histogram_aggregation,
                     .exemplar_filter = settings.exemplar_filter};
  options.log_options.capacity = static_cast<std::size_t>(settings.logs.max_queue_size);
  if (settings.logging_level) options.log_options.minimum = *settings.logging_level;
  PipelineOptions& pipeline = options.pipeline;
  pipeline.exporters = input.exporters;
  pipeline.sends_traces = config.traces_enabled;
  pipeline.sends_metrics = config.metrics_enabled;
  pipeline.sends_logs = config.logs_enabled;
  pipeline.spans = batch_options(settings.spans);
  pipeline.logs = batch_options(settings.logs);
  pipeline.metric_interval = std::chrono::milliseconds(settings.metric_interval_ms);
  options.console_exporter = config.exporter == "console";
  options.file_exporter = config.exporter == "file";
  pipeline.otlp = otlp;
}

}  // namespace

SetupResult setup_telemetry(const LensSettings& settings, const SetupInput& input, const Environment& environment) {
  const LensConfig& config = settings.config;
  SetupResult result;
  result.warnings = settings.warnings;
  check_run_folder(config, input);
  std::optional<otlp::Options> otlp;
  if (config.enabled && config.exporter == "otlp") otlp = otlp::options_from_environment(result.warnings);
  result.run_id = choose_run_id(config, environment, input.shared_run_id);
  result.is_exporting =
      is_exporting_rank({config, input.rank, input.world_size, environment, result.warnings}) && config.enabled;
  if (!kIsLensBuilt && result.is_exporting) {
    result.warnings.emplace_back(
        "this build of Pharos has no telemetry (PHAROS_LENS=OFF): nothing is recorded or sent");
  }
  if (!kIsLensBuilt) result.is_exporting = false;
  if (!kIsLensBuilt || (!result.is_exporting && !input.keeps_ring)) return result;

  TelemetryOptions options;
  options.groups = ring_groups(settings);
  options.service_name = config.service_name;
  options.rank = input.rank;
  options.world_size = input.world_size;
  options.run_folder = input.run_folder;
  options.ring_file = input.keeps_ring;
  options.limits = record_limits(settings.sdk.limits);
  if (result.is_exporting) {
    options.resource_attributes = build_resource(config,
                                                 {.run_id = result.run_id,
                                                  .rank = input.rank,
                                                  .world_size = input.world_size,
                                                  .coordinates = input.coordinates,
                                                  .extra = input.resource_attributes,
                                                  .host = collect_host_facts(),
                                                  .has_training_keys = input.has_training_keys},
                                                 environment, result.warnings);
    options.sampler = make_sampler_of(config, settings.sdk, input.rank);
    choose_exporters(config, settings.sdk, otlp, input, options);
  }
  result.telemetry = &Telemetry::init(std::move(options));
  return result;
}

}  // namespace pharos::lens
