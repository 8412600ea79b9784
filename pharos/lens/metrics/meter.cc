#include "pharos/lens/metrics/meter.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_valid_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || !is_letter(name.front())) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '/';
  });
}

std::string describe(InstrumentKind kind, bool is_integer, const std::string& unit) {
  return std::string(is_integer ? "int64 " : "double ") + to_string(kind) + " of unit '" + unit + "'";
}

}  // namespace

Meter::Meter(std::string scope, const MetricOptions& options) : scope_(std::move(scope)), options_(options) {}

internal::Instrument& Meter::find_or_create(std::string_view name, InstrumentKind kind, bool is_integer,
                                            InstrumentOptions& options) {
  if (!is_valid_name(name)) throw base::InternalError("'" + std::string(name) + "' is no name for an instrument");
  if (options.bounds.empty()) options.bounds.assign(std::begin(kDefaultBounds), std::end(kDefaultBounds));
  if (std::adjacent_find(options.bounds.begin(), options.bounds.end(), std::greater_equal<>()) !=
      options.bounds.end()) {
    throw base::InternalError("the bounds of " + std::string(name) + " do not ascend");
  }
  const std::lock_guard lock(mutex_);
  for (const auto& instrument : instruments_) {
    if (instrument->name() != name) continue;
    if (instrument->kind() == kind && instrument->is_integer() == is_integer &&
        instrument->options().unit == options.unit) {
      return *instrument;
    }
    throw base::InternalError("instrument " + std::string(name) + " is a " +
                              describe(instrument->kind(), instrument->is_integer(), instrument->options().unit) +
                              " and was asked for as a " + describe(kind, is_integer, options.unit));
  }
  instruments_.push_back(std::make_unique<internal::Instrument>(std::string(name), kind, is_integer, std::move(options),
                                                                options_, base::wall_ns()));
  return *instruments_.back();
}

ObservableInstrument Meter::observe(std::string_view name, InstrumentKind kind, bool is_integer,
                                    InstrumentOptions& options, ObserveCallback callback) {
  internal::Instrument& instrument = find_or_create(name, kind, is_integer, options);
  if (instrument.has_callback()) throw base::InternalError("instrument " + std::string(name) + " has a callback");
  instrument.set_callback(std::move(callback));
  return ObservableInstrument(instrument);
}

std::vector<const internal::Instrument*> Meter::instruments() const {
  const std::lock_guard lock(mutex_);
  std::vector<const internal::Instrument*> instruments;
  for (const auto& instrument : instruments_) instruments.push_back(instrument.get());
  return instruments;
}

ScopeMetrics Meter::collect(std::int64_t now_ns) {
  // Instruments are never removed: collecting outside the lock lets other threads create some meanwhile.
  std::vector<internal::Instrument*> instruments;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& instrument : instruments_) instruments.push_back(instrument.get());
  }
  ScopeMetrics metrics{scope_, {}};
  for (internal::Instrument* instrument : instruments) {
    if (std::optional<MetricData> metric = instrument->collect(now_ns)) metrics.metrics.push_back(std::move(*metric));
  }
  return metrics;
}

Meter& MeterProvider::meter(std::string_view scope) {
  const std::lock_guard lock(mutex_);
  for (const auto& meter : meters_) {
    if (meter->scope() == scope) return *meter;
  }
  meters_.push_back(std::make_unique<Meter>(std::string(scope), options_));
  return *meters_.back();
}

std::vector<Meter*> MeterProvider::all_meters() const {
  const std::lock_guard lock(mutex_);
  std::vector<Meter*> meters;
  for (const auto& meter : meters_) meters.push_back(meter.get());
  return meters;
}

MetricsData MeterProvider::collect(std::int64_t now_ns) {
  const std::lock_guard lock(collect_mutex_);
  MetricsData data;
  for (Meter* meter : all_meters()) {
    ScopeMetrics metrics = meter->collect(now_ns);
    if (!metrics.metrics.empty()) data.push_back(std::move(metrics));
  }
  return data;
}

std::uint64_t MeterProvider::num_rejected() const {
  std::uint64_t count = 0;
  for (const Meter* meter : all_meters()) {
    for (const internal::Instrument* instrument : meter->instruments()) count += instrument->num_rejected();
  }
  return count;
}

}  // namespace pharos::lens
