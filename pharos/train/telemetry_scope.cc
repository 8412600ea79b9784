#include "pharos/train/telemetry_scope.h"

#include "pharos/config/derived.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/lens/setup/setup_telemetry.h"

namespace pharos::train {
namespace {

lens::LensDefaults defaults_of(const config::TelemetryConfig& config) {
  return {.enabled = config.enabled,
          .service_name = config.service_name,
          .export_strategy = config.export_strategy,
          .export_rank = config.export_rank,
          .export_sample_rate = config.export_sample_rate,
          .sampler_enabled = config.sampler_enabled,
          .traces_enabled = config.traces_enabled,
          .metrics_enabled = config.metrics_enabled,
          .logs_enabled = config.logs_enabled,
          .span_groups = config.span_groups,
          .exporter = config.exporter,
          .run_id = config.run_id};
}

/// What one command line says about telemetry in two ways, flags and overrides, decides over the environment.
lens::LensFlags flags_of(const config::ResolvedConfig& resolved, const TrainOptions& options) {
  lens::LensFlags flags = options.telemetry;
  // Telemetry that is off only warns of a bad specification, but the ring obeys it, and a flag is meant.
  if (flags.span_groups) lens::parse_groups(*flags.span_groups, "--otel-span-groups");
  const config::TelemetryConfig& config = resolved.config.telemetry;
  const auto is_override = [&resolved](const char* field) {
    return resolved.origin_of(field).kind == config::Origin::Kind::kCommandLine;
  };
  if (!flags.enabled && is_override("telemetry.enabled")) flags.enabled = config.enabled;
  if (!flags.service_name && is_override("telemetry.service_name")) flags.service_name = config.service_name;
  if (!flags.span_groups && is_override("telemetry.span_groups")) flags.span_groups = config.span_groups;
  return flags;
}

/// megatron-telemetry.md section 4.5; what is not set is left out.
lens::StoredAttributes describe_model(const config::RunConfig& config) {
  lens::StoredAttributes attributes;
  const auto add = [&attributes](const char* key, const std::optional<std::int64_t>& value) {
    if (value) attributes.emplace_back(key, *value);
  };
  add("dl.batch_size", config.train.global_batch_size);
  add("dl.sequence_length", config.model.seq_length);
  add("megatron.num_layers", config.model.num_layers);
  add("megatron.hidden_size", config.model.hidden_size);
  add("megatron.num_attention_heads", config.model.num_attention_heads);
  add("megatron.train_iters", config.train.train_iters);
  add("megatron.micro_batch_size", config.train.micro_batch_size);
  attributes.emplace_back("megatron.ckpt_format", config::enum_name(config.checkpoint.ckpt_format));
  const config::DType type = config::compute_dtype(config.model);
  attributes.emplace_back("megatron.precision", std::string(type == config::DType::kFloat16    ? "fp16"
                                                            : type == config::DType::kBFloat16 ? "bf16"
                                                                                               : "fp32"));
  return attributes;
}

}  // namespace

TelemetryScope::TelemetryScope(const config::ResolvedConfig& resolved, const TrainOptions& options,
                               const RunFolder& folder) {
  const lens::ProcessEnvironment environment;
  const config::TelemetryConfig& config = resolved.config.telemetry;
  lens::LoadOptions load;
  load.defaults = defaults_of(config);
  load.default_service_name = config.service_name;
  const lens::LensSettings settings = lens::load_settings(environment, load, flags_of(resolved, options));
  lens::SetupInput input;
  input.coordinates = lens::RankCoordinates{};
  input.resource_attributes = describe_model(resolved.config);
  input.run_folder = folder.path();
  input.keeps_ring = config.ring;
  input.handles_signals = true;
  const lens::SetupResult result = lens::setup_telemetry(settings, input, environment);
  warnings_ = result.warnings;
}

TelemetryScope::~TelemetryScope() {
  if (auto* telemetry = lens::Telemetry::get()) telemetry->shutdown();
}

void TelemetryScope::discard() {
  auto* telemetry = lens::Telemetry::get();
  if (telemetry == nullptr) return;
  telemetry->shutdown();
  telemetry->discard_ring();
}

}  // namespace pharos::train
