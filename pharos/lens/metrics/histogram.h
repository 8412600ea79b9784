// The two histogram aggregations. Not thread-safe: an instrument's mutex guards them.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "pharos/lens/data/metric_data.h"

namespace pharos::lens {

/// Bounds of a histogram that names none (lens.md section 8.5).
inline constexpr double kDefaultBounds[] = {0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000};

namespace internal {

/// Buckets (bounds[i-1], bounds[i]], the first from -infinity, the last to +infinity; the last exemplar of each.
class ExplicitHistogram {
 public:
  /// bounds: ascending; must outlive the histogram.
  explicit ExplicitHistogram(const std::vector<double>& bounds);
  void record(double value);
  /// Of the bucket `value` fell into; replaces the one before.
  void offer(double value, const Exemplar& exemplar);
  /// Everything but attributes and times; takes the exemplars out.
  HistogramPoint collect();

 private:
  std::size_t bucket_of(double value) const;

  const std::vector<double>* bounds_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::optional<Exemplar>> exemplars_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
  double min_ = 0;
  double max_ = 0;
};

/// Base-2 exponential histogram of values >= 0 (OpenTelemetry metrics data model, "ExponentialHistogram"): starts at
/// scale 20 and halves its resolution whenever the values would need more than 160 buckets.
class ExponentialHistogram {
 public:
  static constexpr std::int32_t kMaxScale = 20;
  static constexpr std::int32_t kMinScale = -10;
  static constexpr std::int64_t kMaxBuckets = 160;

  void record(double value);
  /// Keeps 20 of those offered since the last collection, each with the same probability.
  void offer(const Exemplar& exemplar);
  ExponentialHistogramPoint collect();

  /// i with 2^(2^-scale · i) < value <= 2^(2^-scale · (i+1)), for value > 0; subnormal values count as the smallest
  /// normal one.
  static std::int64_t index_of(double value, std::int32_t scale);

 private:
  void downscale(std::int32_t change);

  std::int32_t scale_ = kMaxScale;
  std::int64_t offset_ = 0;  ///< index of counts_.front()
  std::vector<std::uint64_t> counts_;
  std::uint64_t zero_count_ = 0;
  std::uint64_t count_ = 0;
  double sum_ = 0;
  double min_ = 0;
  double max_ = 0;
  std::uint64_t num_offered_ = 0;
  std::vector<Exemplar> exemplars_;
  std::minstd_rand random_;
};

}  // namespace internal
}  // namespace pharos::lens
