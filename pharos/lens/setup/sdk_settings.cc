#include "pharos/lens/setup/sdk_settings.h"

#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {
namespace {

[[noreturn]] void fail(const std::string& name, const std::string& value, const std::string& rule) {
  throw base::UserError({.what = name + " = '" + shown(value) + "' is not " + rule + ".",
                         .where = "environment",
                         .fix = "Give " + rule + " or unset it."});
}

/// Reads variables one by one into their places.
class Reader {
 public:
  Reader(const Environment& environment, std::vector<std::string>& warnings)
      : environment_(environment), warnings_(warnings) {}

  /// At least `minimum`; nothing else will do.
  void read_strict(const std::string& name, std::int64_t minimum, std::int64_t& value) {
    const auto text = environment_.get_nonblank(name);
    if (!text) return;
    const auto number = parse_integer(*text);
    const std::string rule = "a whole number of at least " + std::to_string(minimum);
    if (!number || *number < minimum) fail(name, *text, rule);
    value = *number;
  }

  void read_strict(const std::string& name, std::optional<std::int64_t>& value) {
    std::int64_t number = value.value_or(-1);
    read_strict(name, 0, number);
    if (number >= 0) value = number;
  }

  /// Above 0; what is no number is warned of.
  void read_positive(const std::string& name, std::int64_t& value) {
    const auto text = environment_.get_nonblank(name);
    if (!text) return;
    const auto number = parse_integer(*text);
    if (!number) return warn(name, *text, "is not a whole number; " + std::to_string(value) + " is used.");
    if (*number <= 0) fail(name, *text, "a whole number above 0");
    value = *number;
  }

  /// One of `choices`, in any case.
  template <typename Value, std::size_t count>
  void read_choice(const std::string& name, const std::pair<const char*, Value> (&choices)[count], Value& value) {
    const auto text = environment_.get_nonblank(name);
    if (!text) return;
    std::vector<std::string> known;
    for (const auto& [word, choice] : choices) {
      if (lower_case(*text) == word) {
        value = choice;
        return;
      }
      known.emplace_back(word);
    }
    warn(name, *text, "is not one of " + base::join(known, ", ") + "; the default is used.");
  }

  void warn(const std::string& name, const std::string& value, const std::string& text) {
    warnings_.push_back(name + " = '" + shown(value) + "' " + text);
  }

  const Environment& environment() const { return environment_; }

 private:
  const Environment& environment_;
  std::vector<std::string>& warnings_;
};

void read_batch(Reader& reader, const std::string& prefix, BatchSettings& batch) {
  const BatchSettings defaults = batch;
  reader.read_positive(prefix + "SCHEDULE_DELAY", batch.schedule_delay_ms);
  reader.read_positive(prefix + "MAX_QUEUE_SIZE", batch.max_queue_size);
  reader.read_positive(prefix + "MAX_EXPORT_BATCH_SIZE", batch.max_export_batch_size);
  reader.read_positive(prefix + "EXPORT_TIMEOUT", batch.export_timeout_ms);
  if (batch.max_export_batch_size <= batch.max_queue_size) return;
  if (batch.max_export_batch_size == defaults.max_export_batch_size) {
    batch.max_export_batch_size = batch.max_queue_size;  // only the queue was given, and it is small
    return;
  }
  fail(prefix + "MAX_EXPORT_BATCH_SIZE", std::to_string(batch.max_export_batch_size),
       "a number up to the size of the queue, " + std::to_string(batch.max_queue_size) + " (" + prefix +
           "MAX_QUEUE_SIZE)");
}

void read_sampler(Reader& reader, SamplerSettings& sampler) {
  enum class Kind { kOn, kOff, kRatio };
  struct Choice {
    Kind kind = Kind::kOn;
    bool is_parent_based = true;
  } choice;
  static constexpr std::pair<const char*, Choice> kChoices[] = {
      {"always_on", {Kind::kOn, false}},
      {"always_off", {Kind::kOff, false}},
      {"traceidratio", {Kind::kRatio, false}},
      {"parentbased_always_on", {Kind::kOn, true}},
      {"parentbased_always_off", {Kind::kOff, true}},
      {"parentbased_traceidratio", {Kind::kRatio, true}},
  };
  reader.read_choice("OTEL_TRACES_SAMPLER", kChoices, choice);
  sampler.is_parent_based = choice.is_parent_based;
  sampler.ratio = choice.kind == Kind::kOff ? 0.0 : 1.0;
  const auto text = reader.environment().get_nonblank("OTEL_TRACES_SAMPLER_ARG");
  if (!text || choice.kind != Kind::kRatio) return;
  const auto ratio = parse_number(*text);
  if (ratio && *ratio >= 0.0 && *ratio <= 1.0) {
    sampler.ratio = *ratio;
  } else {
    reader.warn("OTEL_TRACES_SAMPLER_ARG", *text, "is not a ratio from 0 to 1; all traces are sampled.");
  }
}

void read_limits(Reader& reader, LimitSettings& limits) {
  std::int64_t any_attributes = 128;
  reader.read_strict("OTEL_ATTRIBUTE_COUNT_LIMIT", 0, any_attributes);
  limits.span_attributes = limits.log_attributes = any_attributes;
  reader.read_strict("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 0, limits.span_attributes);
  reader.read_strict("OTEL_SPAN_EVENT_COUNT_LIMIT", 0, limits.span_events);
  reader.read_strict("OTEL_SPAN_LINK_COUNT_LIMIT", 0, limits.span_links);
  reader.read_strict("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", 0, limits.event_attributes);
  reader.read_strict("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", 0, limits.link_attributes);
  reader.read_strict("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", 0, limits.log_attributes);
  std::optional<std::int64_t> any_length;
  reader.read_strict("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", any_length);
  limits.span_attribute_length = limits.log_attribute_length = any_length;
  reader.read_strict("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", limits.span_attribute_length);
  reader.read_strict("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", limits.log_attribute_length);
}

void read_metrics(Reader& reader, SdkSettings& settings) {
  reader.read_strict("OTEL_METRIC_EXPORT_INTERVAL", 1, settings.metric_interval_ms);
  reader.read_positive("OTEL_METRIC_EXPORT_TIMEOUT", settings.metric_timeout_ms);
  static constexpr std::pair<const char*, ExemplarFilter> kFilters[] = {{"trace_based", ExemplarFilter::kTraceBased},
                                                                        {"always_on", ExemplarFilter::kAlwaysOn},
                                                                        {"always_off", ExemplarFilter::kAlwaysOff}};
  reader.read_choice("OTEL_METRICS_EXEMPLAR_FILTER", kFilters, settings.exemplar_filter);
  static constexpr std::pair<const char*, TemporalityPreference> kTemporalities[] = {
      {"cumulative", TemporalityPreference::kCumulative},
      {"delta", TemporalityPreference::kDelta},
      {"lowmemory", TemporalityPreference::kLowMemory}};
  reader.read_choice("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", kTemporalities, settings.temporality);
  static constexpr std::pair<const char*, HistogramAggregation> kAggregations[] = {
      {"explicit_bucket_histogram", HistogramAggregation::kExplicit},
      {"base2_exponential_bucket_histogram", HistogramAggregation::kExponential}};
  reader.read_choice("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", kAggregations,
                     settings.histogram_aggregation);
}

void read_propagators(Reader& reader, SdkSettings& settings) {
  const auto text = reader.environment().get_nonblank("OTEL_PROPAGATORS");
  if (!text) return;
  settings.propagates_trace_context = settings.propagates_baggage = false;
  std::string_view rest = *text;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string name = lower_case(trim_blanks(rest.substr(0, comma)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (name == "tracecontext") {
      settings.propagates_trace_context = true;
    } else if (name == "baggage") {
      settings.propagates_baggage = true;
    } else if (!name.empty() && name != "none") {
      reader.warn("OTEL_PROPAGATORS", name, "is not one of tracecontext, baggage, none and is ignored.");
    }
  }
}

/// Python's levels: 10 debug, 20 info, 30 warning, 40 error, 50 critical; a number between two means the upper one.
void read_logging_level(Reader& reader, SdkSettings& settings) {
  const auto text = reader.environment().get_nonblank("MEGATRON_LOGGING_LEVEL");
  if (!text) return;
  if (const auto level = parse_integer(*text)) {
    settings.logging_level = *level <= 10   ? Severity::kDebug
                             : *level <= 20 ? Severity::kInfo
                             : *level <= 30 ? Severity::kWarn
                             : *level <= 40 ? Severity::kError
                                            : Severity::kFatal;
    return;
  }
  static constexpr std::pair<const char*, Severity> kLevels[] = {
      {"debug", Severity::kDebug},    {"info", Severity::kInfo},   {"warn", Severity::kWarn},
      {"warning", Severity::kWarn},   {"error", Severity::kError}, {"fatal", Severity::kFatal},
      {"critical", Severity::kFatal},
  };
  Severity level = Severity::kUnspecified;
  reader.read_choice("MEGATRON_LOGGING_LEVEL", kLevels, level);
  if (level != Severity::kUnspecified) settings.logging_level = level;
}

}  // namespace

SdkSettings load_sdk_settings(const Environment& environment, std::vector<std::string>& warnings) {
  SdkSettings settings;
  Reader reader(environment, warnings);
  const auto disabled = environment.get_nonblank("OTEL_SDK_DISABLED");
  settings.is_disabled = disabled && lower_case(*disabled) == "true";
  if (disabled && !settings.is_disabled && lower_case(*disabled) != "false") {
    reader.warn("OTEL_SDK_DISABLED", *disabled, "counts as false: only the word true disables.");
  }
  read_batch(reader, "OTEL_BSP_", settings.spans);
  read_batch(reader, "OTEL_BLRP_", settings.logs);
  read_sampler(reader, settings.sampler);
  read_limits(reader, settings.limits);
  read_metrics(reader, settings);
  read_propagators(reader, settings);
  read_logging_level(reader, settings);
  return settings;
}

}  // namespace pharos::lens
