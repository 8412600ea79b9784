// What telemetry is asked to do: the variables of nemo-lens and Megatron, the flags, and the run's `telemetry` section
// (lens.md section 1, megatron-telemetry.md section 4.2). Which variables exist is listed in variables.h; what the
// OpenTelemetry SDK reads beside these is in sdk_settings.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pharos/lens/group.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// lens.md section 1.1, with the defaults given there unless said otherwise.
struct LensConfig {
  bool enabled = false;
  std::string service_name = "pharos";          ///< nemo-lens: "nemo"
  std::string export_strategy = "single_rank";  ///< a name of strategies.h
  std::int64_t export_rank = -1;                ///< for single_rank; negative: the last one
  double export_sample_rate = 1.0;              ///< of ranks, 0 … 1; for `sampled` and the rank sampler
  bool sample_at_least_one = false;             ///< own: `sampled` falls back to the last rank where it picks nobody
  bool sampler_enabled = false;                 ///< thin out spans by rank, too
  bool traces_enabled = true;
  bool metrics_enabled = true;
  bool logs_enabled = false;
  std::string span_groups = "default";
  std::string exporter = "otlp";  ///< "otlp", "console", or our own "file": lines in the run folder
  std::string run_id = {};        ///< empty: choose_run_id() of run_id.h
  std::string user = {};
  std::string wandb_entity = {};
  std::string wandb_project = {};
  std::string deployment_environment = {};

  /// Where each field that is not at its default was read, by the field's name: "MEGATRON_OTEL_EXPORTER",
  /// "NEMO_LENS_EXPORTER, read because …", "--otel-span-groups", "telemetry.enabled".
  std::map<std::string, std::string> sources = {};
};

/// The `telemetry` section of a run's YAML: below variables, above built-in defaults.
struct LensDefaults {
  std::optional<bool> enabled = {};
  std::optional<std::string> service_name = {};
  std::optional<std::string> export_strategy = {};
  std::optional<std::int64_t> export_rank = {};
  std::optional<double> export_sample_rate = {};
  std::optional<bool> sample_at_least_one = {};
  std::optional<bool> sampler_enabled = {};
  std::optional<bool> traces_enabled = {};
  std::optional<bool> metrics_enabled = {};
  std::optional<bool> logs_enabled = {};
  std::optional<std::string> span_groups = {};
  std::optional<std::string> exporter = {};
  std::optional<std::string> run_id = {};
  std::optional<std::string> user = {};
};

struct LoadOptions {
  /// Read in this order, each key by itself; a blank value counts as none. {"NEMO_LENS"} with service name "nemo" is
  /// what nemo-lens does.
  std::vector<std::string> prefixes = {"MEGATRON_OTEL", "NEMO_LENS"};
  std::string default_service_name = "pharos";
  LensDefaults defaults = {};
};

/// Reads every variable of lens.md sections 1.1 and 1.4 that concerns these fields. The documented but never read names
/// RANK_STRATEGY and SAMPLING_STRATEGY count as EXPORT_STRATEGY and SAMPLER_ENABLED, with a warning; so does an unknown
/// variable of one of the prefixes, with the nearest name. A value that is not of its type, or a sample rate outside
/// 0 … 1, is a UserError that names the variable which was read and the primary one, also when telemetry is disabled.
/// Names (strategy, exporter, groups) are checked by validate(), after the flags.
LensConfig load_lens_config(const Environment& environment, const LoadOptions& options,
                            std::vector<std::string>& warnings);

/// The command line, above everything else. Unlike Megatron's switch, `enabled` can also say no.
void apply_flags(LensConfig& config, std::optional<bool> enabled, std::optional<std::string> service_name,
                 std::optional<std::string> span_groups);

/// Checks everything that could otherwise fail on exporting ranks alone, where it would leave the others waiting for a
/// dead one (lens.md section 15, A2): call it on every rank before the strategy is asked. The strategy's name and the
/// sample rate are UserErrors always; groups and exporter are UserErrors when telemetry is enabled, else warnings,
/// because nemo-lens does not look at them then.
void validate(const LensConfig& config, std::vector<std::string>& warnings);

/// Warns of OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER and OTEL_LOGS_EXPORTER, which nemo-lens does not read, where
/// they ask for something else than `config` does. Telemetry off: nothing.
void warn_of_standard_exporters(const Environment& environment, const LensConfig& config,
                                std::vector<std::string>& warnings);

/// The groups of `span_groups`. UserError as of parse_groups(), saying where the specification was read.
GroupMask resolved_groups(const LensConfig& config);

}  // namespace pharos::lens
