#include "pharos/lens/metrics/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace pharos::lens::internal {
namespace {

TEST(ExplicitHistogram, BucketsIncludeTheirUpperBound) {
  const std::vector<double> bounds = {0, 5, 10};
  ExplicitHistogram histogram(bounds);
  for (const double value : {0.0, 0.1, 5.0, 5.1, 10.0, 10.1, 1e9}) histogram.record(value);
  const HistogramPoint point = histogram.collect();
  EXPECT_EQ(point.bucket_counts, (std::vector<std::uint64_t>{1, 2, 2, 2}));
  EXPECT_EQ(point.count, 7u);
  EXPECT_DOUBLE_EQ(point.sum, 0.1 + 5 + 5.1 + 10 + 10.1 + 1e9);
  EXPECT_EQ(point.min, 0.0);
  EXPECT_EQ(point.max, 1e9);
  EXPECT_EQ(point.bounds, bounds);
}

TEST(ExplicitHistogram, KeepsTheLastExemplarOfEachBucketUntilCollected) {
  const std::vector<double> bounds = {10};
  ExplicitHistogram histogram(bounds);
  for (const double value : {1.0, 2.0, 20.0}) {
    histogram.record(value);
    histogram.offer(value, {.time_ns = 1, .value = value, .context = {}});
  }
  const HistogramPoint point = histogram.collect();
  ASSERT_EQ(point.exemplars.size(), 2u);
  EXPECT_EQ(std::get<double>(point.exemplars[0].value), 2.0);
  EXPECT_EQ(std::get<double>(point.exemplars[1].value), 20.0);
  EXPECT_TRUE(histogram.collect().exemplars.empty());
  EXPECT_EQ(histogram.collect().count, 3u);
}

TEST(ExponentialHistogram, IndexIsThatOfTheFormula) {
  struct Case {
    double value;
    std::int32_t scale;
    std::int64_t index;  // ceil(log2(value) · 2^scale) - 1, by hand
  };
  const Case cases[] = {
      {1, 0, -1},
      {1, 20, -1},
      {1, -10, -1},
      {2, 0, 0},
      {2, 1, 1},
      {4, 1, 3},
      {3, 0, 1},
      {3, 1, 3},
      {0.75, 2, -2},
      {0.5, 3, -9},
      {4, -1, 0},
      {5, -1, 1},
      {0.25, -1, -2},
      {1.5, 3, 4},
      {1000, 3, 79},
      {1000, -4, 0},
      {65536, -4, 0},
      {65537, -4, 1},
      {1024, 20, 10485759},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ExponentialHistogram::index_of(c.value, c.scale), c.index) << c.value << " at scale " << c.scale;
  }
}

TEST(ExponentialHistogram, PowersOfTwoEndTheirBucketAtEveryScale) {
  for (std::int32_t scale = 1; scale <= ExponentialHistogram::kMaxScale; ++scale) {
    for (const int exponent : {-1022, -3, -1, 0, 1, 7, 1023}) {
      const double power = std::ldexp(1.0, exponent);
      const std::int64_t index = (std::int64_t{exponent} << scale) - 1;
      EXPECT_EQ(ExponentialHistogram::index_of(power, scale), index) << exponent << " at scale " << scale;
      EXPECT_EQ(ExponentialHistogram::index_of(std::nextafter(power, HUGE_VAL), scale), index + 1)
          << exponent << " at scale " << scale;
    }
  }
}

TEST(ExponentialHistogram, SubnormalAndLargestValuesHaveAnIndex) {
  const double smallest = std::numeric_limits<double>::min();
  EXPECT_EQ(ExponentialHistogram::index_of(std::numeric_limits<double>::denorm_min(), 20),
            ExponentialHistogram::index_of(smallest, 20));
  EXPECT_EQ(ExponentialHistogram::index_of(std::numeric_limits<double>::max(), 20), (std::int64_t{1024} << 20) - 1);
}

TEST(ExponentialHistogram, IndexAtALowerScaleIsTheShiftedOne) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const double value = std::exp2(std::uniform_real_distribution<double>(-40, 40)(random));
    const std::int64_t index = ExponentialHistogram::index_of(value, 20);
    for (std::int32_t scale = 19; scale >= -10; --scale) {
      EXPECT_EQ(ExponentialHistogram::index_of(value, scale), index >> (20 - scale)) << value << " at " << scale;
    }
  }
}

/// Largest scale at which the values fit into 160 buckets, by trying.
std::int32_t expected_scale(const std::vector<double>& values) {
  for (std::int32_t scale = 20; scale > -10; --scale) {
    std::int64_t low = std::numeric_limits<std::int64_t>::max();
    std::int64_t high = std::numeric_limits<std::int64_t>::min();
    for (const double value : values) {
      const auto index = static_cast<std::int64_t>(std::ceil(std::log2(value) * std::ldexp(1.0, scale))) - 1;
      low = std::min(low, index);
      high = std::max(high, index);
    }
    if (high - low < 160) return scale;
  }
  return -10;
}

TEST(ExponentialHistogram, HalvesItsResolutionUntilAllValuesFit) {
  const std::vector<std::vector<double>> inputs = {{1, 1000},       {1000, 1},           {3, 3.00001, 700, 0.002},
                                                   {1e-300, 1e300}, {5, 6, 7, 8, 9, 10}, {0.1, 3, 0.01, 40, 0.001}};
  for (const std::vector<double>& values : inputs) {
    ExponentialHistogram histogram;
    for (const double value : values) histogram.record(value);
    const ExponentialHistogramPoint point = histogram.collect();
    EXPECT_EQ(point.scale, expected_scale(values)) << values.front();
    EXPECT_LE(point.positive.counts.size(), 160u);
    std::map<std::int64_t, std::uint64_t> expected;
    for (const double value : values) {
      ++expected[static_cast<std::int64_t>(std::ceil(std::log2(value) * std::ldexp(1.0, point.scale))) - 1];
    }
    for (std::size_t i = 0; i < point.positive.counts.size(); ++i) {
      EXPECT_EQ(point.positive.counts[i], expected[point.positive.offset + static_cast<std::int64_t>(i)]) << i;
    }
    std::uint64_t total = 0;
    for (const std::uint64_t count : point.positive.counts) total += count;
    EXPECT_EQ(total, values.size());
  }
}

TEST(ExponentialHistogram, OneToThousandHasScaleThree) {
  // log2(1000) = 9.97: 80 buckets at scale 3, 161 at scale 4.
  ExponentialHistogram histogram;
  for (int value = 1; value <= 1000; ++value) histogram.record(value);
  const ExponentialHistogramPoint point = histogram.collect();
  EXPECT_EQ(point.scale, 3);
  EXPECT_EQ(point.positive.offset, -1);
  EXPECT_EQ(point.positive.counts.size(), 81u);
  EXPECT_EQ(point.positive.counts[0], 1u);    // 1
  EXPECT_EQ(point.positive.counts[8], 1u);    // (2^(7/8), 2]: 2
  EXPECT_EQ(point.positive.counts[80], 61u);  // (2^(79/8) = 939.01…, 1024]: 940 … 1000
  EXPECT_EQ(point.count, 1000u);
  EXPECT_EQ(point.sum, 500500);
}

TEST(ExponentialHistogram, ZerosAreCountedApart) {
  ExponentialHistogram histogram;
  histogram.record(0);
  histogram.record(0);
  histogram.record(8);
  const ExponentialHistogramPoint point = histogram.collect();
  EXPECT_EQ(point.zero_count, 2u);
  EXPECT_EQ(point.count, 3u);
  EXPECT_EQ(point.min, 0.0);
  EXPECT_EQ(point.max, 8.0);
  EXPECT_EQ(point.positive.counts, std::vector<std::uint64_t>{1});
  EXPECT_EQ(point.positive.offset, (3 << 20) - 1);
  EXPECT_TRUE(point.negative.counts.empty());
}

TEST(ExponentialHistogram, KeepsTwentyExemplarsOfAllOffered) {
  ExponentialHistogram histogram;
  for (std::int64_t i = 0; i < 1000; ++i) histogram.offer({.time_ns = i, .value = i, .context = {}});
  const std::vector<Exemplar> kept = histogram.collect().exemplars;
  EXPECT_EQ(kept.size(), 20u);
  std::set<std::int64_t> times;
  for (const Exemplar& exemplar : kept) times.insert(exemplar.time_ns);
  EXPECT_EQ(times.size(), 20u);
  EXPECT_GT(*times.rbegin(), 19) << "later ones take part";
  EXPECT_TRUE(histogram.collect().exemplars.empty());
}

}  // namespace
}  // namespace pharos::lens::internal
