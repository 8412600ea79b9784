#include "pharos/lens/setup/sdk_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Variables = std::map<std::string, std::string>;

SdkSettings load(const Variables& variables, std::vector<std::string>* said = nullptr) {
  std::vector<std::string> warnings;
  SdkSettings settings = load_sdk_settings(MapEnvironment(variables), warnings);
  if (said != nullptr) *said = warnings;
  return settings;
}

TEST(SdkSettings, Defaults) {
  const SdkSettings settings = load({});
  EXPECT_FALSE(settings.is_disabled);
  EXPECT_EQ(settings.spans.schedule_delay_ms, 5000);
  EXPECT_EQ(settings.spans.max_queue_size, 65536);
  EXPECT_EQ(settings.spans.max_export_batch_size, 512);
  EXPECT_EQ(settings.logs.schedule_delay_ms, 1000);
  EXPECT_EQ(settings.logs.max_queue_size, 2048);
  EXPECT_EQ(settings.metric_interval_ms, 10000);
  EXPECT_EQ(settings.metric_timeout_ms, 30000);
  EXPECT_TRUE(settings.sampler.is_parent_based);
  EXPECT_EQ(settings.sampler.ratio, 1.0);
  EXPECT_EQ(settings.limits.span_attributes, 128);
  EXPECT_EQ(settings.limits.span_attribute_length, std::nullopt);
  EXPECT_EQ(settings.logging_level, std::nullopt);
}

/// Whole numbers, each set to 7 and looked for in its place.
TEST(SdkSettings, EveryNumberHasItsPlace) {
  using Place = std::function<std::int64_t(const SdkSettings&)>;
  using S = const SdkSettings&;
  const std::pair<const char*, Place> kPlaces[] = {
      {"OTEL_BSP_SCHEDULE_DELAY", [](S s) { return s.spans.schedule_delay_ms; }},
      {"OTEL_BSP_MAX_QUEUE_SIZE", [](S s) { return s.spans.max_queue_size; }},
      {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", [](S s) { return s.spans.max_export_batch_size; }},
      {"OTEL_BSP_EXPORT_TIMEOUT", [](S s) { return s.spans.export_timeout_ms; }},
      {"OTEL_BLRP_SCHEDULE_DELAY", [](S s) { return s.logs.schedule_delay_ms; }},
      {"OTEL_BLRP_MAX_QUEUE_SIZE", [](S s) { return s.logs.max_queue_size; }},
      {"OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", [](S s) { return s.logs.max_export_batch_size; }},
      {"OTEL_BLRP_EXPORT_TIMEOUT", [](S s) { return s.logs.export_timeout_ms; }},
      {"OTEL_METRIC_EXPORT_INTERVAL", [](S s) { return s.metric_interval_ms; }},
      {"OTEL_METRIC_EXPORT_TIMEOUT", [](S s) { return s.metric_timeout_ms; }},
      {"OTEL_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.span_attributes; }},
      {"OTEL_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.log_attributes; }},
      {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.span_attributes; }},
      {"OTEL_SPAN_EVENT_COUNT_LIMIT", [](S s) { return s.limits.span_events; }},
      {"OTEL_SPAN_LINK_COUNT_LIMIT", [](S s) { return s.limits.span_links; }},
      {"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.event_attributes; }},
      {"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.link_attributes; }},
      {"OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", [](S s) { return s.limits.log_attributes; }},
      {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", [](S s) { return s.limits.span_attribute_length.value_or(-1); }},
      {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", [](S s) { return s.limits.log_attribute_length.value_or(-1); }},
      {"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", [](S s) { return s.limits.span_attribute_length.value_or(-1); }},
      {"OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", [](S s) { return s.limits.log_attribute_length.value_or(-1); }},
  };
  for (const auto& [name, place] : kPlaces) {
    std::vector<std::string> warnings;
    EXPECT_EQ(place(load({{name, " 7 "}}, &warnings)), 7) << name;
    EXPECT_THAT(warnings, IsEmpty()) << name;
    EXPECT_EQ(place(load({{name, " "}})), place(SdkSettings{})) << name;  // empty counts as not set
  }
  const LimitSettings limits =
      load({{"OTEL_ATTRIBUTE_COUNT_LIMIT", "9"}, {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "3"}}).limits;
  EXPECT_EQ(limits.span_attributes, 3);
  EXPECT_EQ(limits.log_attributes, 9);
  EXPECT_EQ(limits.event_attributes, 128);
  EXPECT_EQ(load({{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "0"}}).limits.span_attribute_length, 0);
}

TEST(SdkSettings, NumbersNobodyCanObeyAreUserErrors) {
  const std::pair<const char*, const char*> kCases[] = {
      {"OTEL_METRIC_EXPORT_INTERVAL", "abc"}, {"OTEL_METRIC_EXPORT_INTERVAL", "1000.5"},
      {"OTEL_METRIC_EXPORT_INTERVAL", "0"},   {"OTEL_METRIC_EXPORT_INTERVAL", "-5"},
      {"OTEL_BSP_SCHEDULE_DELAY", "0"},       {"OTEL_BSP_MAX_QUEUE_SIZE", "-1"},
      {"OTEL_SPAN_EVENT_COUNT_LIMIT", "-1"},  {"OTEL_ATTRIBUTE_COUNT_LIMIT", "many"},
      {"OTEL_METRIC_EXPORT_TIMEOUT", "0"},    {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "-2"},
  };
  for (const auto& [name, value] : kCases) {
    try {
      load({{name, value}});
      ADD_FAILURE() << name << "=" << value;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string(name) + " = '" + value + "'"));
    }
  }
}

TEST(SdkSettings, BatchIsNotLargerThanTheQueue) {
  EXPECT_THROW(load({{"OTEL_BSP_MAX_QUEUE_SIZE", "10"}, {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "11"}}), base::UserError);
  EXPECT_THROW(load({{"OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "2049"}}), base::UserError);
  EXPECT_EQ(load({{"OTEL_BSP_MAX_QUEUE_SIZE", "10"}}).spans.max_export_batch_size, 10);
  EXPECT_EQ(load({{"OTEL_BSP_MAX_QUEUE_SIZE", "10"}, {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10"}}).spans.max_queue_size,
            10);
}

TEST(SdkSettings, Sampler) {
  struct Case {
    const char* name;
    const char* argument;
    bool is_parent_based;
    double ratio;
    std::size_t num_warnings;
  };
  const Case kCases[] = {
      {"always_on", "", false, 1.0, 0},
      {"always_off", "", false, 0.0, 0},
      {"ALWAYS_OFF", "0.5", false, 0.0, 0},
      {"traceidratio", "0.25", false, 0.25, 0},
      {"traceidratio", "", false, 1.0, 0},
      {"traceidratio", "x", false, 1.0, 1},
      {"traceidratio", "1.5", false, 1.0, 1},
      {"traceidratio", "nan", false, 1.0, 1},
      {"parentbased_always_on", "", true, 1.0, 0},
      {"parentbased_always_off", "", true, 0.0, 0},
      {"parentbased_traceidratio", "0", true, 0.0, 0},
      {"jaeger_remote", "0.1", true, 1.0, 1},
      {"", "0.1", true, 1.0, 0},
  };
  for (const Case& c : kCases) {
    std::vector<std::string> warnings;
    const SdkSettings settings =
        load({{"OTEL_TRACES_SAMPLER", c.name}, {"OTEL_TRACES_SAMPLER_ARG", c.argument}}, &warnings);
    EXPECT_EQ(settings.sampler.is_parent_based, c.is_parent_based) << c.name << " " << c.argument;
    EXPECT_EQ(settings.sampler.ratio, c.ratio) << c.name << " " << c.argument;
    EXPECT_THAT(warnings, SizeIs(c.num_warnings)) << c.name << " " << c.argument;
  }
}

TEST(SdkSettings, WordsInAnyCase) {
  constexpr auto kTemporality = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE";
  EXPECT_EQ(load({{kTemporality, "DELTA"}}).temporality, TemporalityPreference::kDelta);
  EXPECT_EQ(load({{kTemporality, "LowMemory"}}).temporality, TemporalityPreference::kLowMemory);
  EXPECT_EQ(load({{kTemporality, "cumulative"}}).temporality, TemporalityPreference::kCumulative);
  constexpr auto kAggregation = "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION";
  EXPECT_EQ(load({{kAggregation, "base2_exponential_bucket_histogram"}}).histogram_aggregation,
            HistogramAggregation::kExponential);
  constexpr auto kFilter = "OTEL_METRICS_EXEMPLAR_FILTER";
  EXPECT_EQ(load({{kFilter, "always_on"}}).exemplar_filter, ExemplarFilter::kAlwaysOn);
  EXPECT_EQ(load({{kFilter, "Always_Off"}}).exemplar_filter, ExemplarFilter::kAlwaysOff);
  for (const char* name : {kTemporality, kAggregation, kFilter}) {
    std::vector<std::string> warnings;
    const SdkSettings settings = load({{name, "sideways"}}, &warnings);
    EXPECT_THAT(warnings, ElementsAre(HasSubstr(std::string(name) + " = 'sideways' is not one of"))) << name;
    EXPECT_EQ(settings.temporality, TemporalityPreference::kCumulative);
    EXPECT_EQ(settings.histogram_aggregation, HistogramAggregation::kExplicit);
    EXPECT_EQ(settings.exemplar_filter, ExemplarFilter::kTraceBased);
  }
}

TEST(SdkSettings, OnlyTheWordTrueDisables) {
  struct Case {
    const char* value;
    bool is_disabled;
    std::size_t num_warnings;
  };
  for (const Case& c : {Case{"true", true, 0}, Case{" TRUE ", true, 0}, Case{"False", false, 0}, Case{"1", false, 1},
                        Case{"", false, 0}}) {
    std::vector<std::string> warnings;
    EXPECT_EQ(load({{"OTEL_SDK_DISABLED", c.value}}, &warnings).is_disabled, c.is_disabled) << c.value;
    EXPECT_THAT(warnings, SizeIs(c.num_warnings)) << c.value;
  }
}

TEST(SdkSettings, Propagators) {
  struct Case {
    const char* value;
    bool trace_context;
    bool baggage;
    std::size_t num_warnings;
  };
  for (const Case& c :
       {Case{"", true, true, 0}, Case{"tracecontext, baggage", true, true, 0}, Case{"TraceContext", true, false, 0},
        Case{"baggage", false, true, 0}, Case{"none", false, false, 0}, Case{"b3,tracecontext", true, false, 1}}) {
    std::vector<std::string> warnings;
    const SdkSettings settings = load({{"OTEL_PROPAGATORS", c.value}}, &warnings);
    EXPECT_EQ(settings.propagates_trace_context, c.trace_context) << c.value;
    EXPECT_EQ(settings.propagates_baggage, c.baggage) << c.value;
    EXPECT_THAT(warnings, SizeIs(c.num_warnings)) << c.value;
  }
}

TEST(SdkSettings, LoggingLevel) {
  const std::pair<const char*, std::optional<Severity>> kCases[] = {
      {"10", Severity::kDebug},     {"0", Severity::kDebug},        {"15", Severity::kInfo},  {"20", Severity::kInfo},
      {"30", Severity::kWarn},      {"40", Severity::kError},       {"50", Severity::kFatal}, {"INFO", Severity::kInfo},
      {"warning", Severity::kWarn}, {"critical", Severity::kFatal}, {"loud", std::nullopt},   {"", std::nullopt},
  };
  for (const auto& [value, level] : kCases) {
    EXPECT_EQ(load({{"MEGATRON_LOGGING_LEVEL", value}}).logging_level, level) << value;
  }
  std::vector<std::string> warnings;
  load({{"MEGATRON_LOGGING_LEVEL", "loud"}}, &warnings);
  EXPECT_THAT(warnings, SizeIs(1));
}

}  // namespace
}  // namespace pharos::lens
