#include "pharos/lens/metrics/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace pharos::lens::internal {
namespace {

constexpr std::size_t kExponentialExemplars = 20;

void widen(std::uint64_t count_before, double value, double& min, double& max) {
  min = count_before == 0 ? value : std::min(min, value);
  max = count_before == 0 ? value : std::max(max, value);
}

}  // namespace

ExplicitHistogram::ExplicitHistogram(const std::vector<double>& bounds)
    : bounds_(&bounds), counts_(bounds.size() + 1), exemplars_(bounds.size() + 1) {}

std::size_t ExplicitHistogram::bucket_of(double value) const {
  return static_cast<std::size_t>(std::lower_bound(bounds_->begin(), bounds_->end(), value) - bounds_->begin());
}

void ExplicitHistogram::record(double value) {
  ++counts_[bucket_of(value)];
  widen(count_, value, min_, max_);
  ++count_;
  sum_ += value;
}

void ExplicitHistogram::offer(double value, const Exemplar& exemplar) { exemplars_[bucket_of(value)] = exemplar; }

HistogramPoint ExplicitHistogram::collect() {
  HistogramPoint point;
  point.count = count_;
  point.sum = sum_;
  if (count_ != 0) {
    point.min = min_;
    point.max = max_;
  }
  point.bucket_counts = counts_;
  point.bounds = *bounds_;
  for (std::optional<Exemplar>& exemplar : exemplars_) {
    if (exemplar) point.exemplars.push_back(*std::exchange(exemplar, std::nullopt));
  }
  return point;
}

std::int64_t ExponentialHistogram::index_of(double value, std::int32_t scale) {
  value = std::max(value, std::numeric_limits<double>::min());
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // value = fraction · 2^exponent, fraction in [1/2, 1)
  // Index at scale 0: a power of two is the upper end of its bucket.
  const bool is_power = fraction == 0.5;
  const std::int64_t index_at_zero = is_power ? exponent - 2 : exponent - 1;
  if (scale <= 0) return index_at_zero >> -scale;
  // Powers of two are exact; in between the logarithm is of the fraction alone, which keeps its error below a bucket.
  if (is_power) return (std::int64_t{exponent - 1} << scale) - 1;
  const double steps = std::ldexp(1.0, scale);
  const auto in_octave = static_cast<std::int64_t>(std::ceil(std::log2(2 * fraction) * steps)) - 1;
  const auto last = (std::int64_t{1} << scale) - 1;
  return (std::int64_t{exponent - 1} << scale) + std::clamp<std::int64_t>(in_octave, 0, last);
}

void ExponentialHistogram::downscale(std::int32_t change) {
  if (change <= 0) return;
  scale_ -= change;
  const std::int64_t new_offset = offset_ >> change;
  std::vector<std::uint64_t> merged;
  if (!counts_.empty()) {
    const std::int64_t last = offset_ + static_cast<std::int64_t>(counts_.size()) - 1;
    merged.resize(static_cast<std::size_t>((last >> change) - new_offset + 1));
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      merged[static_cast<std::size_t>(((offset_ + static_cast<std::int64_t>(i)) >> change) - new_offset)] += counts_[i];
    }
  }
  counts_ = std::move(merged);
  offset_ = new_offset;
}

void ExponentialHistogram::record(double value) {
  widen(count_, value, min_, max_);
  ++count_;
  sum_ += value;
  if (value == 0) {
    ++zero_count_;
    return;
  }
  std::int64_t index = index_of(value, scale_);
  if (counts_.empty()) {
    offset_ = index;
    counts_.push_back(1);
    return;
  }
  std::int64_t low = std::min(offset_, index);
  std::int64_t high = std::max(offset_ + static_cast<std::int64_t>(counts_.size()) - 1, index);
  std::int32_t change = 0;
  while (high - low >= kMaxBuckets && scale_ - change > kMinScale) {
    low >>= 1;
    high >>= 1;
    ++change;
  }
  downscale(change);
  index >>= change;
  if (index < offset_) {
    counts_.insert(counts_.begin(), static_cast<std::size_t>(offset_ - index), 0);
    offset_ = index;
  }
  const auto position = static_cast<std::size_t>(index - offset_);
  if (position >= counts_.size()) counts_.resize(position + 1);
  ++counts_[position];
}

void ExponentialHistogram::offer(const Exemplar& exemplar) {
  ++num_offered_;
  if (exemplars_.size() < kExponentialExemplars) {
    exemplars_.push_back(exemplar);
    return;
  }
  const auto place = std::uniform_int_distribution<std::uint64_t>(0, num_offered_ - 1)(random_);
  if (place < exemplars_.size()) exemplars_[place] = exemplar;
}

ExponentialHistogramPoint ExponentialHistogram::collect() {
  ExponentialHistogramPoint point;
  point.count = count_;
  point.sum = sum_;
  if (count_ != 0) {
    point.min = min_;
    point.max = max_;
  }
  point.scale = scale_;
  point.zero_count = zero_count_;
  point.positive = {static_cast<std::int32_t>(offset_), counts_};
  point.exemplars = std::exchange(exemplars_, {});
  num_offered_ = 0;
  return point;
}

}  // namespace pharos::lens::internal
