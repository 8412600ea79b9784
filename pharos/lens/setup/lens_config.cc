#include "pharos/lens/setup/lens_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/setup/strategies.h"
#include "pharos/lens/variables/scalar.h"
#include "pharos/lens/variables/variables.h"

namespace pharos::lens {
namespace {

struct Reading {
  std::string value;
  std::string variable;  ///< the one that was read
  std::string primary;   ///< the one to set
};

/// Documented in Megatron's guide, read by nobody before (lens.md section 15, C4).
constexpr std::pair<std::string_view, std::string_view> kOldNames[] = {{"EXPORT_STRATEGY", "RANK_STRATEGY"},
                                                                       {"SAMPLER_ENABLED", "SAMPLING_STRATEGY"}};

std::string old_name_of(std::string_view key) {
  for (const auto& [name, old_name] : kOldNames) {
    if (name == key) return std::string(old_name);
  }
  return "";
}

std::string prefixed(const std::string& prefix, const std::string& key) { return prefix + "_" + key; }

std::string describe_source(const Reading& reading) {
  if (reading.variable == reading.primary) return reading.variable;
  return reading.variable + ", read because " + reading.primary + " is not set";
}

[[noreturn]] void fail_value(const Reading& reading, const std::string& kind, const std::string& fix) {
  throw base::UserError({.what = reading.variable + " = '" + shown(reading.value) + "' is not " + kind + ".",
                         .where = "environment: " + describe_source(reading),
                         .fix = fix + " Or unset it."});
}

class Reader {
 public:
  Reader(const Environment& environment, const LoadOptions& options, LensConfig& config,
         std::vector<std::string>& warnings)
      : environment_(environment), options_(options), config_(config), warnings_(warnings) {}

  void read(const char* key, const char* field, bool LensConfig::*member, std::optional<bool> fallback) {
    take_default(field, member, fallback);
    const auto reading = find(key);
    if (!reading) return;
    const auto value = parse_boolean(reading->value);
    if (!value) fail_value(*reading, "a yes or no", "Give 1, true, yes or on; or 0, false, no or off.");
    set(field, member, *value, describe_source(*reading));
  }

  void read(const char* key, const char* field, std::int64_t LensConfig::*member,
            std::optional<std::int64_t> fallback) {
    take_default(field, member, fallback);
    const auto reading = find(key);
    if (!reading) return;
    const auto value = parse_integer(reading->value);
    if (!value) fail_value(*reading, "a whole number", "Give a decimal number such as 0 or -1.");
    set(field, member, *value, describe_source(*reading));
  }

  void read(const char* key, const char* field, double LensConfig::*member, std::optional<double> fallback) {
    take_default(field, member, fallback);
    const auto reading = find(key);
    if (!reading) return;
    const auto value = parse_number(reading->value);
    if (!value) fail_value(*reading, "a number", "Give a number such as 0.1.");
    set(field, member, *value, describe_source(*reading));
  }

  void read(const char* key, const char* field, std::string LensConfig::*member,
            const std::optional<std::string>& fallback) {
    take_default(field, member, fallback);
    if (const auto reading = find(key)) set(field, member, reading->value, describe_source(*reading));
  }

  /// SAMPLING_STRATEGY=rank_aware is how Megatron's guide turns the rank sampler on.
  void read_sampler(std::optional<bool> fallback) {
    take_default("sampler_enabled", &LensConfig::sampler_enabled, fallback);
    const auto reading = find("SAMPLER_ENABLED");
    if (!reading) return;
    const bool is_old_name = reading->variable.ends_with("_SAMPLING_STRATEGY");
    auto value = parse_boolean(reading->value);
    if (is_old_name && !value && lower_case(reading->value) == "rank_aware") value = true;
    if (!value && is_old_name) {
      warnings_.push_back(reading->variable + " = '" + shown(reading->value) +
                          "' is ignored: only 'rank_aware' is known.");
      return;
    }
    if (!value) fail_value(*reading, "a yes or no", "Give 1, true, yes or on; or 0, false, no or off.");
    set("sampler_enabled", &LensConfig::sampler_enabled, *value, describe_source(*reading));
  }

  void read_plain(const char* variable, const char* field, std::string LensConfig::*member) {
    if (const auto value = environment_.get_nonblank(variable)) set(field, member, *value, variable);
  }

 private:
  /// First nonblank value among the prefixes, old names right after the names they stand for.
  std::optional<Reading> find(const std::string& key) {
    const std::string primary = prefixed(options_.prefixes.front(), key);
    const std::string old_name = old_name_of(key);
    for (const std::string& prefix : options_.prefixes) {
      const std::string variable = prefixed(prefix, key);
      if (auto value = environment_.get_nonblank(variable)) return Reading{*value, variable, primary};
      if (old_name.empty()) continue;
      const std::string old_variable = prefixed(prefix, old_name);
      if (auto value = environment_.get_nonblank(old_variable)) {
        warn_of_old_name(old_variable, variable);
        return Reading{*value, old_variable, primary};
      }
    }
    return std::nullopt;
  }

  void warn_of_old_name(const std::string& old_variable, const std::string& variable) {
    warnings_.push_back(old_variable + " is read as " + variable + ", which is the name to use.");
  }

  template <typename Value>
  void set(const char* field, Value LensConfig::*member, const Value& value, const std::string& source) {
    config_.*member = value;
    config_.sources[field] = source;
  }

  template <typename Value>
  void take_default(const char* field, Value LensConfig::*member, const std::optional<Value>& value) {
    if (value) set(field, member, *value, std::string("telemetry.") + field);
  }

  const Environment& environment_;
  const LoadOptions& options_;
  LensConfig& config_;
  std::vector<std::string>& warnings_;
};

std::string unknown_text(const std::string& name, const std::vector<std::string>& known) {
  const std::vector<std::string> nearest = base::nearest_names(name, known, 1);
  return shown(name) + " is not a variable of telemetry and is ignored." +
         (nearest.empty() ? "" : " Did you mean " + nearest.front() + "?");
}

void warn_of_unknown(const Environment& environment, const LoadOptions& options, std::vector<std::string>& warnings) {
  for (const std::string& prefix : options.prefixes) {
    std::vector<std::string> known;
    for (const std::string& key : prefixed_keys()) known.push_back(prefixed(prefix, key));
    for (const std::string& name : environment.names_starting_with(prefixed(prefix, ""))) {
      if (std::find(known.begin(), known.end(), name) == known.end()) warnings.push_back(unknown_text(name, known));
    }
  }
}

std::string source_of(const LensConfig& config, const std::string& field) {
  const auto found = config.sources.find(field);
  return found == config.sources.end() ? "" : found->second;
}

void check_sample_rate(const LensConfig& config) {
  const double rate = config.export_sample_rate;
  if (rate >= 0.0 && rate <= 1.0) return;  // false for NaN
  throw base::UserError({.what = "export_sample_rate = " + std::to_string(rate) + " is not between 0 and 1.",
                         .where = source_of(config, "export_sample_rate"),
                         .why = "it is the fraction of ranks that export",
                         .fix = "Give a number from 0.0 (no rank) to 1.0 (all ranks)."});
}

void check_exporter(const LensConfig& config) {
  const auto is_known = [](std::string_view name) { return name == "otlp" || name == "console" || name == "file"; };
  if (is_known(config.exporter)) return;
  const std::string lower = lower_case(config.exporter);
  const bool is_only_case = is_known(lower);
  throw base::UserError(
      {.what = "Unknown exporter type '" + shown(config.exporter) + "'.",
       .where = source_of(config, "exporter"),
       .fix = is_only_case ? "Write it in lower case: " + lower + "." : "Use otlp, console or file."});
}

/// nemo-lens chooses exporters by its own variables and reads none of these; one that asks for something else than
/// what happens must not be ignored in silence.
void warn_of_standard_exporter(const Environment& environment, const LensConfig& config, const char* signal,
                               bool is_sent, std::vector<std::string>& warnings) {
  const std::string name = std::string("OTEL_") + signal + "_EXPORTER";
  const auto asked = environment.get_nonblank(name);
  if (!asked || lower_case(*asked) == (is_sent ? config.exporter : "none")) return;
  warnings.push_back(name + " = '" + shown(*asked) + "' has no effect, as in nemo-lens: MEGATRON_OTEL_EXPORTER (here " +
                     config.exporter + ") chooses where telemetry goes, MEGATRON_OTEL_" + signal + "_ENABLED (here " +
                     (is_sent ? "1" : "0") + ") whether these do.");
}

}  // namespace

void warn_of_standard_exporters(const Environment& environment, const LensConfig& config,
                                std::vector<std::string>& warnings) {
  if (!config.enabled) return;
  warn_of_standard_exporter(environment, config, "TRACES", config.traces_enabled, warnings);
  warn_of_standard_exporter(environment, config, "METRICS", config.metrics_enabled, warnings);
  warn_of_standard_exporter(environment, config, "LOGS", config.logs_enabled, warnings);
}

LensConfig load_lens_config(const Environment& environment, const LoadOptions& options,
                            std::vector<std::string>& warnings) {
  PHAROS_CHECK(!options.prefixes.empty(), "no prefix to read telemetry's variables with");
  LensConfig config;
  Reader reader(environment, options, config, warnings);
  const LensDefaults& defaults = options.defaults;
  reader.read("ENABLED", "enabled", &LensConfig::enabled, defaults.enabled);
  reader.read("EXPORT_STRATEGY", "export_strategy", &LensConfig::export_strategy, defaults.export_strategy);
  reader.read("EXPORT_RANK", "export_rank", &LensConfig::export_rank, defaults.export_rank);
  reader.read("EXPORT_SAMPLE_RATE", "export_sample_rate", &LensConfig::export_sample_rate, defaults.export_sample_rate);
  reader.read("SAMPLE_AT_LEAST_ONE", "sample_at_least_one", &LensConfig::sample_at_least_one,
              defaults.sample_at_least_one);
  reader.read_sampler(defaults.sampler_enabled);
  reader.read("TRACES_ENABLED", "traces_enabled", &LensConfig::traces_enabled, defaults.traces_enabled);
  reader.read("METRICS_ENABLED", "metrics_enabled", &LensConfig::metrics_enabled, defaults.metrics_enabled);
  reader.read("LOGS_ENABLED", "logs_enabled", &LensConfig::logs_enabled, defaults.logs_enabled);
  reader.read("SPAN_GROUPS", "span_groups", &LensConfig::span_groups, defaults.span_groups);
  reader.read("EXPORTER", "exporter", &LensConfig::exporter, defaults.exporter);
  reader.read("RUN_ID", "run_id", &LensConfig::run_id, defaults.run_id);
  reader.read("USER_ID", "user", &LensConfig::user, defaults.user);

  config.service_name = options.default_service_name;
  if (defaults.service_name && !trim_blanks(*defaults.service_name).empty()) {
    config.service_name = *defaults.service_name;
    config.sources["service_name"] = "telemetry.service_name";
  }
  reader.read_plain("OTEL_SERVICE_NAME", "service_name", &LensConfig::service_name);
  reader.read_plain("WANDB_ENTITY", "wandb_entity", &LensConfig::wandb_entity);
  reader.read_plain("WANDB_PROJECT", "wandb_project", &LensConfig::wandb_project);
  // An empty DEPLOYMENT_ENV also hides ENVIRONMENT (lens.md section 1.4): that is how one says "none".
  const char* deployment = environment.get("DEPLOYMENT_ENV") ? "DEPLOYMENT_ENV" : "ENVIRONMENT";
  reader.read_plain(deployment, "deployment_environment", &LensConfig::deployment_environment);

  warn_of_unknown(environment, options, warnings);
  check_sample_rate(config);
  return config;
}

void apply_flags(LensConfig& config, std::optional<bool> enabled, std::optional<std::string> service_name,
                 std::optional<std::string> span_groups) {
  if (enabled) {
    config.enabled = *enabled;
    config.sources["enabled"] = "--otel-enabled";
  }
  if (service_name && !trim_blanks(*service_name).empty()) {
    config.service_name = *service_name;
    config.sources["service_name"] = "--otel-service-name";
  }
  if (span_groups) {
    config.span_groups = *span_groups;
    config.sources["span_groups"] = "--otel-span-groups";
  }
}

void validate(const LensConfig& config, std::vector<std::string>& warnings) {
  check_strategy_name(config.export_strategy, source_of(config, "export_strategy"));
  check_sample_rate(config);
  try {
    check_exporter(config);
    resolved_groups(config);
  } catch (const base::UserError& error) {
    if (config.enabled) throw;
    warnings.push_back("Telemetry is off; if it were on: " + error.parts().what);
  }
}

GroupMask resolved_groups(const LensConfig& config) {
  return parse_groups(config.span_groups, source_of(config, "span_groups"));
}

}  // namespace pharos::lens
