// Metric instruments. Recording takes the instrument's mutex for some ten nanoseconds and never waits for an exporter.
//
//     Gauge<double> loss = meter.create_gauge<double>("megatron.training.loss");
//     loss.set(2.5);
//     MetricsData data = provider.collect(base::wall_ns());
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <typeindex>
#include <vector>

#include "pharos/lens/attribute.h"
#include "pharos/lens/data/metric_data.h"
#include "pharos/lens/metrics/instrument.h"
#include "pharos/lens/metrics/options.h"

namespace pharos::lens {

template <typename T>
concept MetricNumber = std::same_as<T, std::int64_t> || std::same_as<T, double>;

/// Handles of instruments: copied freely, valid as long as the provider, usable from any thread.
template <MetricNumber T>
class Counter {
 public:
  explicit Counter(internal::Instrument& instrument) : instrument_(&instrument) {}
  /// value >= 0; a negative one is dropped and counted.
  void add(T value, std::initializer_list<Attribute> attributes = {}) const {
    instrument_->record(value, {attributes.begin(), attributes.size()});
  }

 private:
  internal::Instrument* instrument_;
};

template <MetricNumber T>
class UpDownCounter {
 public:
  explicit UpDownCounter(internal::Instrument& instrument) : instrument_(&instrument) {}
  void add(T value, std::initializer_list<Attribute> attributes = {}) const {
    instrument_->record(value, {attributes.begin(), attributes.size()});
  }

 private:
  internal::Instrument* instrument_;
};

template <MetricNumber T>
class Histogram {
 public:
  explicit Histogram(internal::Instrument& instrument) : instrument_(&instrument) {}
  /// value >= 0 and finite; others are dropped and counted.
  void record(T value, std::initializer_list<Attribute> attributes = {}) const {
    instrument_->record(value, {attributes.begin(), attributes.size()});
  }

 private:
  internal::Instrument* instrument_;
};

template <MetricNumber T>
class Gauge {
 public:
  explicit Gauge(internal::Instrument& instrument) : instrument_(&instrument) {}
  /// Any value; NaN is exported.
  void set(T value, std::initializer_list<Attribute> attributes = {}) const {
    instrument_->record(value, {attributes.begin(), attributes.size()});
  }

 private:
  internal::Instrument* instrument_;
};

/// An instrument whose values a callback says at each collection.
class ObservableInstrument {
 public:
  explicit ObservableInstrument(internal::Instrument& instrument) : instrument_(&instrument) {}
  /// From here on the callback is not called; waits for a running call. Not from inside the callback.
  void remove_callback() const { instrument_->set_callback(nullptr); }

 private:
  internal::Instrument* instrument_;
};

/// The instruments of one instrumentation scope. Thread-safe.
///
/// Creating an instrument whose name exists returns the one that is there (its description and bounds stay). An
/// InternalError: the name exists with another kind, number type or unit; an observable one has a callback already; the
/// name is not of the form of OpenTelemetry (a letter, then up to 254 of letters, digits and _ . - /); bounds that do
/// not ascend.
class Meter {
 public:
  Meter(std::string scope, const MetricOptions& options);

  template <MetricNumber T>
  Counter<T> create_counter(std::string_view name, InstrumentOptions options = {}) {
    return Counter<T>(find_or_create(name, InstrumentKind::kCounter, std::same_as<T, std::int64_t>, options));
  }
  template <MetricNumber T>
  UpDownCounter<T> create_up_down_counter(std::string_view name, InstrumentOptions options = {}) {
    return UpDownCounter<T>(
        find_or_create(name, InstrumentKind::kUpDownCounter, std::same_as<T, std::int64_t>, options));
  }
  template <MetricNumber T>
  Histogram<T> create_histogram(std::string_view name, InstrumentOptions options = {}) {
    return Histogram<T>(find_or_create(name, InstrumentKind::kHistogram, std::same_as<T, std::int64_t>, options));
  }
  template <MetricNumber T>
  Gauge<T> create_gauge(std::string_view name, InstrumentOptions options = {}) {
    return Gauge<T>(find_or_create(name, InstrumentKind::kGauge, std::same_as<T, std::int64_t>, options));
  }

  /// The callback is called from collect(), once a collection, and must not create instruments of this meter. An
  /// exception it throws is counted as a rejected value. Counters observe totals.
  template <MetricNumber T>
  ObservableInstrument create_observable_gauge(std::string_view name, ObserveCallback callback,
                                               InstrumentOptions options = {}) {
    return observe(name, InstrumentKind::kObservableGauge, std::same_as<T, std::int64_t>, options, std::move(callback));
  }
  template <MetricNumber T>
  ObservableInstrument create_observable_counter(std::string_view name, ObserveCallback callback,
                                                 InstrumentOptions options = {}) {
    return observe(name, InstrumentKind::kObservableCounter, std::same_as<T, std::int64_t>, options,
                   std::move(callback));
  }

  const std::string& scope() const { return scope_; }
  /// In the order of creation.
  std::vector<const internal::Instrument*> instruments() const;
  ScopeMetrics collect(std::int64_t now_ns);

  /// The T that belongs to this meter, made by T(Meter&) at the first call and released with the meter. What the
  /// constructor throws passes on and nothing is kept.
  template <typename T>
  std::shared_ptr<T> companion() {
    const std::lock_guard lock(companion_mutex_);
    std::shared_ptr<void>& kept = companions_[std::type_index(typeid(T))];
    if (kept == nullptr) kept = std::make_shared<T>(*this);
    return std::static_pointer_cast<T>(kept);
  }

  Meter(const Meter&) = delete;

 private:
  internal::Instrument& find_or_create(std::string_view name, InstrumentKind kind, bool is_integer,
                                       InstrumentOptions& options);
  ObservableInstrument observe(std::string_view name, InstrumentKind kind, bool is_integer, InstrumentOptions& options,
                               ObserveCallback callback);

  const std::string scope_;
  const MetricOptions options_;
  mutable std::mutex mutex_;  ///< guards instruments_
  std::vector<std::unique_ptr<internal::Instrument>> instruments_;
  std::mutex companion_mutex_;  ///< guards companions_; taken before mutex_
  std::map<std::type_index, std::shared_ptr<void>> companions_;
};

/// All meters of a telemetry session.
class MeterProvider {
 public:
  explicit MeterProvider(MetricOptions options = {}) : options_(options) {}

  /// The meter of that scope name, made at the first call; lives as long as the provider.
  Meter& meter(std::string_view scope = "nemo.lens");

  /// Everything there is to export at `now_ns` (Unix); resets what the options say is reset. One caller at a time,
  /// others wait.
  MetricsData collect(std::int64_t now_ns);

  /// Values dropped by all instruments: negative or not finite where that is not allowed, and callbacks that threw.
  std::uint64_t num_rejected() const;

  MeterProvider(const MeterProvider&) = delete;

 private:
  std::vector<Meter*> all_meters() const;

  const MetricOptions options_;
  mutable std::mutex mutex_;  ///< guards meters_
  std::mutex collect_mutex_;
  std::vector<std::unique_ptr<Meter>> meters_;
};

}  // namespace pharos::lens
