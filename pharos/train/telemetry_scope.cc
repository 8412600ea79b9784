#include "pharos/train/telemetry_scope.h"

#include <set>
#include <utility>

#include "pharos/config/derived.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/lens/setup/run_id.h"
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

/// The environment without the variables of fields that were overridden on the command line, which decides over it.
class QuietedEnvironment : public lens::ProcessEnvironment {
 public:
  explicit QuietedEnvironment(const config::ResolvedConfig& resolved) {
    constexpr std::pair<const char*, const char*> kVariables[] = {
        {"enabled", "ENABLED"},
        {"span_groups", "SPAN_GROUPS"},
        {"exporter", "EXPORTER"},
        {"export_strategy", "EXPORT_STRATEGY"},
        {"export_strategy", "RANK_STRATEGY"},
        {"export_rank", "EXPORT_RANK"},
        {"export_sample_rate", "EXPORT_SAMPLE_RATE"},
        {"sampler_enabled", "SAMPLER_ENABLED"},
        {"sampler_enabled", "SAMPLING_STRATEGY"},
        {"traces_enabled", "TRACES_ENABLED"},
        {"metrics_enabled", "METRICS_ENABLED"},
        {"logs_enabled", "LOGS_ENABLED"},
        {"run_id", "RUN_ID"},
    };
    const auto is_override = [&resolved](const std::string& field) {
      return resolved.origin_of("telemetry." + field).kind == config::Origin::Kind::kCommandLine;
    };
    for (const auto& [field, key] : kVariables) {
      if (!is_override(field)) continue;
      for (const char* prefix : {"MEGATRON_OTEL_", "NEMO_LENS_"}) hidden_.insert(std::string(prefix) + key);
    }
    if (is_override("service_name")) hidden_.insert("OTEL_SERVICE_NAME");
  }
  std::optional<std::string> get(const std::string& name) const override {
    return hidden_.contains(name) ? std::nullopt : ProcessEnvironment::get(name);
  }

 private:
  std::set<std::string> hidden_;
};

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

lens::RankCoordinates coordinates_of(const Parallel& parallel) {
  const auto place = [&](comm::MeshDim dim) {
    return lens::Place{static_cast<int>(parallel.mesh.coordinate(parallel.rank, dim)),
                       static_cast<int>(parallel.mesh.size(dim))};
  };
  return {.local_rank = static_cast<int>(parallel.world.environment().local_rank),
          .tensor = place(comm::MeshDim::kTensor),
          .pipeline = place(comm::MeshDim::kPipeline),
          .data = place(comm::MeshDim::kData),
          .context = place(comm::MeshDim::kContext),
          .expert = place(comm::MeshDim::kExpert)};
}

}  // namespace

TelemetryScope::TelemetryScope(const config::ResolvedConfig& resolved, const TrainOptions& options,
                               const RunFolder& folder, const Parallel& parallel,
                               const std::optional<std::string>& known_run_id) {
  // Before anything that can fail on one rank alone.
  const std::string known = parallel.world.announce("run id before", known_run_id.value_or(""));
  std::optional<std::string> shared_run_id;
  if (parallel.world.size() > 1) shared_run_id = parallel.world.announce("run id", lens::make_random_run_id());
  const QuietedEnvironment environment(resolved);
  const config::TelemetryConfig& config = resolved.config.telemetry;
  // Telemetry that is off only warns of a bad specification, but the ring obeys it, and a flag is meant.
  if (options.telemetry.span_groups) lens::parse_groups(*options.telemetry.span_groups, "--otel-span-groups");
  lens::LoadOptions load;
  load.defaults = defaults_of(config);
  load.default_service_name = config.service_name;
  lens::LensSettings settings = lens::load_settings(environment, load, options.telemetry);
  if (settings.config.run_id.empty()) settings.config.run_id = known;
  lens::SetupInput input;
  input.rank = static_cast<int>(parallel.rank);
  input.world_size = static_cast<int>(parallel.world.size());
  input.coordinates = coordinates_of(parallel);
  if (shared_run_id) input.shared_run_id = *shared_run_id;
  input.resource_attributes = describe_model(resolved.config);
  input.run_folder = folder.path();
  input.keeps_ring = config.ring;
  input.handles_signals = true;
  const lens::SetupResult result = lens::setup_telemetry(settings, input, environment);
  warnings_ = result.warnings;
  run_id_ = result.run_id;
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
