// Collected metrics as data: what a meter provider hands to exporters at each collection (OTLP metrics.proto).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pharos/lens/data/stored_value.h"
#include "pharos/lens/span.h"

namespace pharos::lens {

enum class Temporality : std::uint8_t { kDelta = 1, kCumulative = 2 };

using NumberValue = std::variant<std::int64_t, double>;

/// A sample of what was recorded, with the span it was recorded in.
struct Exemplar {
  std::int64_t time_ns = 0;  ///< Unix
  NumberValue value;
  SpanContext context;
};

/// Times are Unix nanoseconds; start_ns = 0: none (gauges).
struct NumberPoint {
  StoredAttributes attributes;
  std::int64_t start_ns = 0;
  std::int64_t time_ns = 0;
  NumberValue value;
  std::vector<Exemplar> exemplars;
};

struct HistogramPoint {
  StoredAttributes attributes;
  std::int64_t start_ns = 0;
  std::int64_t time_ns = 0;
  std::uint64_t count = 0;
  double sum = 0;
  std::optional<double> min;
  std::optional<double> max;
  std::vector<std::uint64_t> bucket_counts;  ///< bounds.size() + 1; counts[i] is of (bounds[i-1], bounds[i]]
  std::vector<double> bounds;                ///< ascending
  std::vector<Exemplar> exemplars;
};

/// Base-2 exponential buckets: counts[i] is of (2^(2^-scale · (offset+i)), 2^(2^-scale · (offset+i+1))].
struct ExponentialHistogramPoint {
  struct Buckets {
    std::int32_t offset = 0;
    std::vector<std::uint64_t> counts;
  };
  StoredAttributes attributes;
  std::int64_t start_ns = 0;
  std::int64_t time_ns = 0;
  std::uint64_t count = 0;
  double sum = 0;
  std::optional<double> min;
  std::optional<double> max;
  std::int32_t scale = 0;
  std::uint64_t zero_count = 0;
  Buckets positive;
  Buckets negative;
  std::vector<Exemplar> exemplars;
};

struct GaugeData {
  std::vector<NumberPoint> points;
};
struct SumData {
  std::vector<NumberPoint> points;
  Temporality temporality = Temporality::kCumulative;
  bool is_monotonic = true;
};
struct HistogramData {
  std::vector<HistogramPoint> points;
  Temporality temporality = Temporality::kCumulative;
};
struct ExponentialHistogramData {
  std::vector<ExponentialHistogramPoint> points;
  Temporality temporality = Temporality::kCumulative;
};

struct MetricData {
  std::string name;
  std::string description;
  std::string unit;
  std::variant<GaugeData, SumData, HistogramData, ExponentialHistogramData> data;
};

struct ScopeMetrics {
  std::string scope;  ///< instrumentation scope: the meter's name
  std::vector<MetricData> metrics;
};

/// Empty when no instrument has anything to say.
using MetricsData = std::vector<ScopeMetrics>;

/// Number of data points, the unit in which OTLP counts metrics.
std::uint64_t count_points(const MetricsData& metrics);

}  // namespace pharos::lens
