#include "pharos/lens/metrics/meter.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/lens/metrics/test_support.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kLater = 2'000'000'000'000'000'000;  // 2033

TEST(Meter, CountersAddUpAndAreExportedInEveryCycle) {
  MemoryMeter metrics;
  const auto counter = metrics.meter().create_counter<std::int64_t>("steps", {.description = "d", .unit = "{step}"});
  const std::int64_t before = base::wall_ns();
  counter.add(2);
  counter.add(3);
  const std::int64_t after = base::wall_ns();
  for (const std::int64_t now : {kLater, kLater + kSecond}) {
    metrics.collect(now);
    EXPECT_EQ(metrics.sum("steps"), 5);
    const NumberPoint point = metrics.points<SumData>("steps").front();
    EXPECT_TRUE(std::holds_alternative<std::int64_t>(point.value));
    EXPECT_EQ(point.time_ns, now);
    EXPECT_GE(point.start_ns, before);  // the first measurement
    EXPECT_LE(point.start_ns, after);
  }
  const MetricData& metric = metrics.collect().at("steps");
  EXPECT_EQ(metric.description, "d");
  EXPECT_EQ(metric.unit, "{step}");
  EXPECT_EQ(std::get<SumData>(metric.data).temporality, Temporality::kCumulative);
  EXPECT_TRUE(std::get<SumData>(metric.data).is_monotonic);
}

TEST(Meter, UpDownCountersGoDown) {
  MemoryMeter metrics;
  const auto counter = metrics.meter().create_up_down_counter<double>("open");
  counter.add(2.5);
  counter.add(-4);
  EXPECT_FALSE(std::get<SumData>(metrics.collect().at("open").data).is_monotonic);
  EXPECT_EQ(metrics.sum("open"), -1.5);
}

TEST(Meter, GaugesAreExportedOnlyInCyclesInWhichTheyWereSet) {
  MemoryMeter metrics;
  const auto gauge = metrics.meter().create_gauge<double>("loss");
  metrics.collect();
  EXPECT_FALSE(metrics.has("loss"));
  gauge.set(3);
  gauge.set(2);
  metrics.collect();
  EXPECT_EQ(metrics.gauge("loss"), 2);
  EXPECT_EQ(metrics.points<GaugeData>("loss").front().start_ns, 0);
  metrics.collect();
  EXPECT_FALSE(metrics.has("loss"));
  gauge.set(std::nan(""));
  metrics.collect();
  EXPECT_TRUE(std::isnan(metrics.gauge("loss")));
}

TEST(Meter, GaugesCanBeRepeated) {
  MemoryMeter metrics({.repeat_gauges = true});
  metrics.meter().create_gauge<std::int64_t>("level").set(4);
  metrics.collect();
  metrics.collect();
  EXPECT_EQ(metrics.gauge("level"), 4);
}

TEST(Meter, HistogramsUseTheDefaultBoundsOrTheirOwn) {
  MemoryMeter metrics;
  metrics.meter().create_histogram<double>("plain").record(60);
  metrics.meter().create_histogram<std::int64_t>("own", {.bounds = {1, 2}}).record(2);
  metrics.collect();
  const HistogramPoint plain = metrics.histogram("plain");
  EXPECT_EQ(plain.bounds,
            (std::vector<double>{0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000}));
  ASSERT_EQ(plain.bucket_counts.size(), 16u);
  EXPECT_EQ(plain.bucket_counts[5], 1u);
  EXPECT_EQ(metrics.histogram("own").bucket_counts, (std::vector<std::uint64_t>{0, 1, 0}));
}

TEST(Meter, ExponentialAggregationReplacesTheExplicitOne) {
  MemoryMeter metrics({.histogram_aggregation = HistogramAggregation::kExponential});
  const auto histogram = metrics.meter().create_histogram<double>("h");
  histogram.record(2);
  histogram.record(0);
  metrics.collect(kLater);
  const auto points = metrics.points<ExponentialHistogramData>("h");
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].count, 2u);
  EXPECT_EQ(points[0].zero_count, 1u);
  EXPECT_EQ(points[0].time_ns, kLater);
  EXPECT_NE(points[0].start_ns, 0);
}

TEST(Meter, ValuesThatAnInstrumentCannotTakeAreCounted) {
  MemoryMeter metrics;
  const auto histogram = metrics.meter().create_histogram<double>("h");
  const auto counter = metrics.meter().create_counter<std::int64_t>("c");
  histogram.record(-0.5);
  histogram.record(std::nan(""));
  histogram.record(std::numeric_limits<double>::infinity());
  counter.add(-1);
  metrics.collect();
  EXPECT_FALSE(metrics.has("h"));
  EXPECT_FALSE(metrics.has("c"));
  EXPECT_EQ(metrics.provider().num_rejected(), 4u);
  histogram.record(0);
  counter.add(0);
  metrics.collect();
  EXPECT_EQ(metrics.histogram("h").count, 1u);
  EXPECT_EQ(metrics.sum("c"), 0);
}

TEST(Meter, EachAttributeSetIsAPointWhateverTheOrder) {
  MemoryMeter metrics;
  const auto counter = metrics.meter().create_counter<std::int64_t>("c");
  counter.add(1, {{"a", 1}, {"b", "x"}});
  counter.add(2, {{"b", "x"}, {"a", 1}});
  counter.add(4, {{"a", "1"}, {"b", "x"}});  // another type is another set
  counter.add(8, {{"a", 7}, {"a", 1}, {"b", "x"}, {"", 3}, {"none", AttributeValue()}});
  counter.add(16);
  metrics.collect();
  const std::vector<NumberPoint> points = metrics.points<SumData>("c");
  ASSERT_EQ(points.size(), 3u);
  std::int64_t of_number = 0;
  std::int64_t of_text = 0;
  std::int64_t of_none = 0;
  for (const NumberPoint& point : points) {
    const std::int64_t value = std::get<std::int64_t>(point.value);
    if (point.attributes.empty()) {
      of_none = value;
    } else if (std::holds_alternative<std::string>(point.attributes[0].second)) {
      of_text = value;
    } else {
      of_number = value;
      EXPECT_EQ(point.attributes, (StoredAttributes{{"a", std::int64_t{1}}, {"b", std::string("x")}}));
    }
  }
  EXPECT_EQ(of_number, 11);
  EXPECT_EQ(of_text, 4);
  EXPECT_EQ(of_none, 16);
}

TEST(Meter, PointsBeyondTheLimitGoToTheOverflow) {
  MemoryMeter metrics;
  const auto counter = metrics.meter().create_counter<std::int64_t>("c");
  constexpr std::int64_t kSets = 5000;
  for (std::int64_t i = 0; i < kSets; ++i) counter.add(1, {{"i", i}});
  counter.add(1, {{"i", 0}});  // known before the limit: keeps its point
  counter.add(1);
  metrics.collect();
  const std::vector<NumberPoint> points = metrics.points<SumData>("c");
  EXPECT_EQ(points.size(), internal::kMaxPoints);
  std::int64_t total = 0;
  std::int64_t overflow = 0;
  for (const NumberPoint& point : points) {
    const std::int64_t value = std::get<std::int64_t>(point.value);
    total += value;
    if (point.attributes == StoredAttributes{{"otel.metric.overflow", true}}) overflow = value;
  }
  EXPECT_EQ(total, kSets + 2);
  EXPECT_EQ(overflow, kSets - static_cast<std::int64_t>(internal::kMaxPoints - 2));
}

struct TemporalityCase {
  TemporalityPreference preference;
  Temporality counter, up_down, histogram, observable;
};

TEST(Meter, TemporalityDependsOnKindAndPreference) {
  constexpr auto kDelta = Temporality::kDelta;
  constexpr auto kCumulative = Temporality::kCumulative;
  const TemporalityCase cases[] = {
      {TemporalityPreference::kCumulative, kCumulative, kCumulative, kCumulative, kCumulative},
      {TemporalityPreference::kDelta, kDelta, kCumulative, kDelta, kDelta},
      {TemporalityPreference::kLowMemory, kDelta, kCumulative, kDelta, kCumulative},
  };
  for (const TemporalityCase& c : cases) {
    SCOPED_TRACE(static_cast<int>(c.preference));
    MemoryMeter metrics({.temporality = c.preference});
    Meter& meter = metrics.meter();
    std::int64_t total = 0;
    const auto counter = meter.create_counter<std::int64_t>("counter");
    const auto up_down = meter.create_up_down_counter<std::int64_t>("up_down");
    const auto histogram = meter.create_histogram<double>("histogram");
    meter.create_observable_counter<std::int64_t>("observable",
                                                  [&total](Observer& observer) { observer.observe(total); });
    for (int cycle = 1; cycle <= 3; ++cycle) {
      total += 10;
      counter.add(10);
      up_down.add(10);
      histogram.record(10);
      const auto& data = metrics.collect(kLater + cycle * kSecond);
      const auto expect = [&](const std::string& name, Temporality temporality, double value, std::int64_t start_ns) {
        EXPECT_EQ(value, temporality == kDelta ? 10 : 10 * cycle) << name << " in cycle " << cycle;
        if (temporality == kDelta && cycle > 1) {
          EXPECT_EQ(start_ns, kLater + (cycle - 1) * kSecond) << name;
        } else {
          EXPECT_LT(start_ns, kLater) << name;
        }
      };
      const auto expect_sum = [&](const std::string& name, Temporality temporality) {
        EXPECT_EQ(std::get<SumData>(data.at(name).data).temporality, temporality) << name;
        expect(name, temporality, metrics.sum(name), metrics.points<SumData>(name).front().start_ns);
      };
      expect_sum("counter", c.counter);
      expect_sum("up_down", c.up_down);
      expect_sum("observable", c.observable);
      EXPECT_EQ(std::get<HistogramData>(data.at("histogram").data).temporality, c.histogram);
      const HistogramPoint point = metrics.histogram("histogram");
      expect("histogram", c.histogram, point.sum, point.start_ns);
      EXPECT_EQ(point.count, static_cast<std::uint64_t>(c.histogram == kDelta ? 1 : cycle));
    }
    metrics.collect();
    EXPECT_EQ(metrics.has("counter"), c.counter == kCumulative);  // nothing since the last time
  }
}

TEST(Meter, ObservableGaugesAskAtEachCollectionUntilTheCallbackIsRemoved) {
  MemoryMeter metrics;
  int calls = 0;
  const ObservableInstrument gauge =
      metrics.meter().create_observable_gauge<double>("depth", [&calls](Observer& observer) {
        ++calls;
        observer.observe(1.5 * calls);
        if (calls < 3) observer.observe(std::int64_t{7}, {{"queue", "logs"}});
      });
  metrics.collect();
  EXPECT_EQ(metrics.points<GaugeData>("depth").size(), 2u);
  metrics.collect();
  metrics.collect();
  EXPECT_EQ(metrics.gauge("depth"), 4.5);  // the other set was not observed again
  gauge.remove_callback();
  metrics.collect();
  EXPECT_FALSE(metrics.has("depth"));
  EXPECT_EQ(calls, 3);
}

TEST(Meter, ACallbackThatThrowsLosesOnlyItsOwnMetric) {
  MemoryMeter metrics;
  metrics.meter().create_observable_gauge<double>("bad", [](Observer&) { throw std::runtime_error("no"); });
  metrics.meter().create_counter<double>("good").add(1);
  metrics.collect();
  EXPECT_FALSE(metrics.has("bad"));
  EXPECT_EQ(metrics.sum("good"), 1);
  EXPECT_EQ(metrics.provider().num_rejected(), 1u);
}

TEST(Meter, ANameIsOneInstrument) {
  MemoryMeter metrics;
  Meter& meter = metrics.meter();
  meter.create_counter<std::int64_t>("c", {.unit = "s"}).add(1);
  meter.create_counter<std::int64_t>("c", {.description = "later", .unit = "s"}).add(1);
  metrics.collect();
  EXPECT_EQ(metrics.sum("c"), 2);
  EXPECT_THROW(meter.create_gauge<std::int64_t>("c", {.unit = "s"}), base::InternalError);
  EXPECT_THROW(meter.create_counter<double>("c", {.unit = "s"}), base::InternalError);
  EXPECT_THROW(meter.create_counter<std::int64_t>("c"), base::InternalError);
  EXPECT_NO_THROW(metrics.provider().meter("other").create_gauge<double>("c"));
  const auto observe = [&meter] { meter.create_observable_gauge<double>("o", [](Observer&) {}); };
  observe();
  EXPECT_THROW(observe(), base::InternalError);
}

TEST(Meter, RefusesBadNamesAndBounds) {
  MemoryMeter metrics;
  for (const std::string& name :
       {std::string(), std::string("1a"), std::string("a b"), std::string("ä"), std::string(256, 'a')}) {
    EXPECT_THROW(metrics.meter().create_gauge<double>(name), base::InternalError) << name;
  }
  EXPECT_NO_THROW(metrics.meter().create_gauge<double>("a/b-c_d.E9"));
  EXPECT_NO_THROW(metrics.meter().create_gauge<double>(std::string(255, 'a')));
  EXPECT_THROW(metrics.meter().create_histogram<double>("h", {.bounds = {1, 1}}), base::InternalError);
}

TEST(Meter, ScopesStayApartAndEmptyOnesAreLeftOut) {
  MeterProvider provider;
  provider.meter("a").create_counter<double>("c").add(1);
  provider.meter("b").create_counter<double>("c");
  EXPECT_EQ(&provider.meter("a"), &provider.meter("a"));
  const MetricsData data = provider.collect(kLater);
  ASSERT_EQ(data.size(), 1u);
  EXPECT_EQ(data[0].scope, "a");
  EXPECT_EQ(count_points(data), 1u);
  EXPECT_EQ(provider.meter().scope(), "nemo.lens");
}

TEST(Meter, AForkedChildDoesNotExportTheTotalsOfItsParent) {
  MemoryMeter metrics;
  const auto counter = metrics.meter().create_counter<std::int64_t>("c");
  counter.add(5);
  const pid_t child = fork();
  if (child == 0) {
    counter.add(1);
    const bool is_silent = metrics.collect().empty();
    MemoryMeter own;
    own.meter().create_counter<std::int64_t>("c").add(1);
    _exit(is_silent && own.collect().size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  metrics.collect();
  EXPECT_EQ(metrics.sum("c"), 5);
}

struct ExemplarCase {
  ExemplarFilter filter;
  bool inside_span, outside_span;
};

TEST(Exemplars, FollowTheFilter) {
  MemoryTelemetry telemetry;
  const ExemplarCase cases[] = {
      {ExemplarFilter::kTraceBased, true, false},
      {ExemplarFilter::kAlwaysOn, true, true},
      {ExemplarFilter::kAlwaysOff, false, false},
  };
  for (const ExemplarCase& c : cases) {
    SCOPED_TRACE(static_cast<int>(c.filter));
    MemoryMeter metrics({.exemplar_filter = c.filter});
    const auto counter = metrics.meter().create_counter<std::int64_t>("c");
    counter.add(1);
    metrics.collect();
    EXPECT_EQ(metrics.points<SumData>("c").front().exemplars.size(), c.outside_span ? 1u : 0u);
    SpanContext context;
    {
      PHAROS_SPAN(span, Group::kStep, "step");
      context = span.context();
      counter.add(4);
    }
    metrics.collect();
    const std::vector<Exemplar> exemplars = metrics.points<SumData>("c").front().exemplars;
    ASSERT_EQ(exemplars.size(), c.inside_span ? 1u : 0u);
    if (!c.inside_span) continue;
    EXPECT_EQ(std::get<std::int64_t>(exemplars[0].value), 4);  // the measurement, not the sum
    EXPECT_EQ(exemplars[0].context, context);
    EXPECT_NE(exemplars[0].time_ns, 0);
    metrics.collect();
    EXPECT_TRUE(metrics.points<SumData>("c").front().exemplars.empty());
  }
}

TEST(Exemplars, HistogramsKeepOnePerBucketAndGaugesTheLast) {
  MemoryTelemetry telemetry;
  MemoryMeter metrics;
  const auto histogram = metrics.meter().create_histogram<double>("h", {.bounds = {10}});
  const auto gauge = metrics.meter().create_gauge<double>("g");
  PHAROS_SPAN(span, Group::kStep, "step");
  for (const double value : {1.0, 2.0, 20.0}) {
    histogram.record(value);
    gauge.set(value);
  }
  metrics.collect();
  const std::vector<Exemplar> exemplars = metrics.histogram("h").exemplars;
  ASSERT_EQ(exemplars.size(), 2u);
  EXPECT_EQ(std::get<double>(exemplars[0].value), 2.0);
  EXPECT_EQ(std::get<double>(exemplars[1].value), 20.0);
  const std::vector<NumberPoint> points = metrics.points<GaugeData>("g");
  ASSERT_EQ(points.front().exemplars.size(), 1u);
  EXPECT_EQ(std::get<double>(points.front().exemplars[0].value), 20.0);
}

void record_in_threads(MemoryMeter& metrics, int num_threads, int num_records, std::atomic<int>& running) {
  const auto counter = metrics.meter().create_counter<std::int64_t>("c");
  const auto histogram = metrics.meter().create_histogram<double>("h");
  const auto gauge = metrics.meter().create_gauge<std::int64_t>("g");
  running = num_threads;
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([=, &metrics, &running] {
      for (int i = 0; i < num_records; ++i) {
        counter.add(1);
        counter.add(2, {{"thread", t}});
        histogram.record(i % 100);
        gauge.set(i);
        metrics.meter().create_counter<std::int64_t>("created").add(1);
      }
      --running;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(MeterThreads, TotalsAreExact) {
  constexpr int kThreads = 8;
  constexpr int kRecords = 5000;
  for (const auto temporality : {TemporalityPreference::kCumulative, TemporalityPreference::kDelta}) {
    MemoryMeter metrics({.temporality = temporality});
    std::atomic<int> running{kThreads};
    std::int64_t plain = 0;
    std::int64_t by_thread = 0;
    std::int64_t created = 0;
    std::uint64_t histogram_count = 0;
    const auto take = [&](bool is_delta) {
      metrics.collect();
      if (!is_delta) plain = by_thread = created = 0, histogram_count = 0;
      for (const NumberPoint& point : metrics.points<SumData>("c")) {
        (point.attributes.empty() ? plain : by_thread) += std::get<std::int64_t>(point.value);
      }
      for (const NumberPoint& point : metrics.points<SumData>("created"))
        created += std::get<std::int64_t>(point.value);
      for (const HistogramPoint& point : metrics.points<HistogramData>("h")) histogram_count += point.count;
    };
    const bool is_delta = temporality == TemporalityPreference::kDelta;
    std::thread collector([&] {
      while (running.load() != 0) take(is_delta);
    });
    record_in_threads(metrics, kThreads, kRecords, running);
    collector.join();
    take(is_delta);
    EXPECT_EQ(plain, kThreads * kRecords);
    EXPECT_EQ(by_thread, 2 * kThreads * kRecords);
    EXPECT_EQ(created, kThreads * kRecords);
    EXPECT_EQ(histogram_count, static_cast<std::uint64_t>(kThreads) * kRecords);
  }
}

}  // namespace
}  // namespace pharos::lens
