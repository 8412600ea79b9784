// For tests of whatever records metrics: a provider in memory and look-ups in what it collected.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "pharos/lens/metrics/meter.h"

namespace pharos::lens {

/// A meter, and the last collection by metric name.
class MemoryMeter {
 public:
  explicit MemoryMeter(MetricOptions options = {}) : provider_(options) {}

  MeterProvider& provider() { return provider_; }
  Meter& meter() { return provider_.meter(); }

  /// Collects; each call is later than the one before.
  const std::map<std::string, MetricData>& collect(std::int64_t now_ns = 0) {
    now_ns_ = now_ns != 0 ? now_ns : now_ns_ + 1'000'000'000;
    metrics_.clear();
    for (ScopeMetrics& scope : provider_.collect(now_ns_)) {
      for (MetricData& metric : scope.metrics) metrics_[metric.name] = std::move(metric);
    }
    return metrics_;
  }

  bool has(const std::string& name) const { return metrics_.contains(name); }

  /// Points of the last collection; none if the metric was not in it.
  template <typename Data>
  auto points(const std::string& name) const {
    const auto found = metrics_.find(name);
    if (found == metrics_.end()) return decltype(Data::points)();
    const Data* data = std::get_if<Data>(&found->second.data);
    EXPECT_NE(data, nullptr) << name << " is of another kind";
    return data != nullptr ? data->points : decltype(Data::points)();
  }

  /// The only point's value.
  double gauge(const std::string& name) const { return only_value(points<GaugeData>(name), name); }
  double sum(const std::string& name) const { return only_value(points<SumData>(name), name); }
  HistogramPoint histogram(const std::string& name) const {
    const std::vector<HistogramPoint> found = points<HistogramData>(name);
    EXPECT_EQ(found.size(), 1u) << name;
    return found.empty() ? HistogramPoint() : found.front();
  }

  std::vector<std::string> instrument_names() {
    std::vector<std::string> names;
    for (const internal::Instrument* instrument : meter().instruments()) names.push_back(instrument->name());
    return names;
  }

 private:
  static double only_value(const std::vector<NumberPoint>& points, const std::string& name) {
    EXPECT_EQ(points.size(), 1u) << name;
    if (points.empty()) return -1;
    return std::visit([](auto value) { return static_cast<double>(value); }, points.front().value);
  }

  MeterProvider provider_;
  std::int64_t now_ns_ = 2'000'000'000'000'000'000;
  std::map<std::string, MetricData> metrics_;
};

}  // namespace pharos::lens
