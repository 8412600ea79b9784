// What a program may choose about metrics, with the defaults of lens.md section 1.5.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pharos::lens {

/// OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE. Up-down counters are cumulative in all three.
enum class TemporalityPreference : std::uint8_t {
  kCumulative,
  kDelta,     ///< counters, observable counters, histograms since the last collection
  kLowMemory  ///< as kDelta, but observable counters stay cumulative
};

/// OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION.
enum class HistogramAggregation : std::uint8_t { kExplicit, kExponential };

/// OTEL_METRICS_EXEMPLAR_FILTER: which measurements may become exemplars.
enum class ExemplarFilter : std::uint8_t { kTraceBased, kAlwaysOn, kAlwaysOff };

struct MetricOptions {
  TemporalityPreference temporality = TemporalityPreference::kCumulative;
  HistogramAggregation histogram_aggregation = HistogramAggregation::kExplicit;
  ExemplarFilter exemplar_filter = ExemplarFilter::kTraceBased;
  /// False: a gauge is exported only in collections before which it was set (lens.md section 8.6). True: its last value
  /// is repeated, as newer releases of the OpenTelemetry SDK do under cumulative temporality.
  bool repeat_gauges = false;
};

enum class InstrumentKind : std::uint8_t {
  kCounter,
  kUpDownCounter,
  kHistogram,
  kGauge,
  kObservableCounter,
  kObservableGauge
};

/// "counter", "histogram", …, for messages and documents.
const char* to_string(InstrumentKind kind);

struct InstrumentOptions {
  std::string description = {};
  std::string unit = {};            ///< UCUM: "s", "ms", "By", "{token}"; empty: none
  std::vector<double> bounds = {};  ///< of an explicit histogram, ascending; empty: kDefaultBounds
};

}  // namespace pharos::lens
