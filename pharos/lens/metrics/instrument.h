// What stands behind the handles of meter.h: the aggregated points of one instrument.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "pharos/lens/attribute.h"
#include "pharos/lens/data/metric_data.h"
#include "pharos/lens/metrics/histogram.h"
#include "pharos/lens/metrics/options.h"
#include "pharos/lens/record/fork.h"

namespace pharos::lens {

class Observer;
using ObserveCallback = std::function<void(Observer&)>;

namespace internal {

/// Points an instrument may have; the last of them takes what has no point of its own (otel.metric.overflow = true).
inline constexpr std::size_t kMaxPoints = 2000;

/// One attribute set of an instrument. start_ns = 0: nothing recorded.
struct Series {
  StoredAttributes attributes;
  std::int64_t start_ns = 0;  ///< Unix time of the first measurement
  NumberValue value;          ///< sum or last value
  std::optional<Exemplar> exemplar;
  std::optional<ExplicitHistogram> explicit_histogram;
  std::optional<ExponentialHistogram> exponential_histogram;
};

/// Thread-safe. A recording waits at most for another recording or for the copy that a collection makes. In a child
/// made by fork the instruments of its parent take and give nothing.
class Instrument {
 public:
  Instrument(std::string name, InstrumentKind kind, bool is_integer, InstrumentOptions options,
             const MetricOptions& metric_options, std::int64_t created_ns);

  const std::string& name() const { return name_; }
  InstrumentKind kind() const { return kind_; }
  bool is_integer() const { return is_integer_; }
  const InstrumentOptions& options() const { return options_; }

  /// value: of the instrument's number type. Dropped and counted: negative values of counters and histograms, NaN and
  /// infinities of anything but gauges.
  void record(NumberValue value, std::span<const Attribute> attributes);

  /// What was recorded up to `now_ns` (Unix); nothing when there is no point to show.
  std::optional<MetricData> collect(std::int64_t now_ns);

  /// The callback of an observable instrument; collect() waits for it. Null removes it, waiting for a running call.
  void set_callback(ObserveCallback callback);
  bool has_callback() const;

  std::uint64_t num_rejected() const { return num_rejected_.load(std::memory_order_relaxed); }

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  bool is_observable() const {
    return kind_ == InstrumentKind::kObservableCounter || kind_ == InstrumentKind::kObservableGauge;
  }
  bool is_gauge() const { return kind_ == InstrumentKind::kGauge || kind_ == InstrumentKind::kObservableGauge; }
  bool is_inherited() const { return fork_generation.load(std::memory_order_relaxed) != generation_; }
  bool is_acceptable(NumberValue value) const;
  Temporality temporality() const;
  Series& find_series(std::span<const Attribute> attributes);
  void aggregate(Series& series, NumberValue value);
  void offer_exemplar(Series& series, NumberValue value);
  void run_callback();
  template <typename Visit>
  void for_each_series(Visit&& visit);
  NumberPoint number_point(Series& series, std::int64_t now_ns);
  template <typename Data>
  std::optional<MetricData> finish(Data data);
  void clear_series();

  const std::string name_;
  const InstrumentKind kind_;
  const bool is_integer_;
  const InstrumentOptions options_;
  const MetricOptions metric_options_;
  const std::int64_t created_ns_;
  const std::uint32_t generation_ = watch_forks();
  std::atomic<std::uint64_t> num_rejected_{0};

  mutable std::mutex callback_mutex_;  ///< taken before mutex_
  ObserveCallback callback_;

  std::mutex mutex_;  ///< guards what follows
  Series plain_;      ///< without attributes
  std::unordered_map<std::string, Series, TextHash, std::equal_to<>> series_;
  std::unordered_map<std::string, NumberValue> reported_;  ///< observable counters under delta temporality
  std::int64_t last_collection_ns_ = 0;
};

}  // namespace internal

/// Takes what a callback sees. Valid during the call only.
class Observer {
 public:
  explicit Observer(internal::Instrument& instrument) : instrument_(instrument) {}
  void observe(double value, std::initializer_list<Attribute> attributes = {});
  void observe(std::int64_t value, std::initializer_list<Attribute> attributes = {});

 private:
  internal::Instrument& instrument_;
};

}  // namespace pharos::lens
