#include "pharos/lens/metrics/instrument.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/record/stored.h"

namespace pharos::lens {

const char* to_string(InstrumentKind kind) {
  constexpr const char* kNames[] = {"counter", "up-down counter",    "histogram",
                                    "gauge",   "observable counter", "observable gauge"};
  return kNames[static_cast<int>(kind)];
}

std::uint64_t count_points(const MetricsData& metrics) {
  std::uint64_t count = 0;
  for (const ScopeMetrics& scope : metrics) {
    for (const MetricData& metric : scope.metrics) {
      count += std::visit([](const auto& data) { return data.points.size(); }, metric.data);
    }
  }
  return count;
}

void Observer::observe(double value, std::initializer_list<Attribute> attributes) {
  instrument_.record(instrument_.is_integer() ? NumberValue(static_cast<std::int64_t>(value)) : NumberValue(value),
                     {attributes.begin(), attributes.size()});
}

void Observer::observe(std::int64_t value, std::initializer_list<Attribute> attributes) {
  instrument_.record(instrument_.is_integer() ? NumberValue(value) : NumberValue(static_cast<double>(value)),
                     {attributes.begin(), attributes.size()});
}

namespace internal {
namespace {

constexpr std::string_view kOverflowKey = "otel.metric.overflow";

double as_double(NumberValue value) {
  return std::visit([](auto number) { return static_cast<double>(number); }, value);
}

NumberValue add(NumberValue left, NumberValue right) {
  if (const auto* integer = std::get_if<std::int64_t>(&left)) {
    // Wraps like the counters of the kernel; a receiver sees a reset.
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(*integer) +
                                     static_cast<std::uint64_t>(std::get<std::int64_t>(right)));
  }
  return std::get<double>(left) + std::get<double>(right);
}

NumberValue subtract(NumberValue left, NumberValue right) {
  if (const auto* integer = std::get_if<std::int64_t>(&left)) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(*integer) -
                                     static_cast<std::uint64_t>(std::get<std::int64_t>(right)));
  }
  return std::get<double>(left) - std::get<double>(right);
}

void append_bytes(std::string& key, const void* bytes, std::size_t num_bytes) {
  const std::uint32_t length = static_cast<std::uint32_t>(num_bytes);
  key.append(reinterpret_cast<const char*>(&length), sizeof length);
  if (num_bytes != 0) key.append(static_cast<const char*>(bytes), num_bytes);
}

/// Attributes that count, sorted by key, the last of equal keys.
void normalize(std::span<const Attribute> attributes, std::vector<Attribute>& sorted) {
  sorted.clear();
  for (const Attribute& attribute : attributes) {
    if (attribute.key.empty() || attribute.value.type() == AttributeValue::Type::kNone) continue;
    const auto same =
        std::find_if(sorted.begin(), sorted.end(), [&](const Attribute& known) { return known.key == attribute.key; });
    if (same != sorted.end()) {
      *same = attribute;
    } else {
      sorted.push_back(attribute);
    }
  }
  std::sort(sorted.begin(), sorted.end(), [](const Attribute& a, const Attribute& b) { return a.key < b.key; });
}

/// The same text for the same set of attributes.
void make_key(const std::vector<Attribute>& sorted, std::string& key) {
  key.clear();
  for (const Attribute& attribute : sorted) {
    append_bytes(key, attribute.key.data(), attribute.key.size());
    key.push_back(static_cast<char>(attribute.value.type()));
    switch (attribute.value.type()) {
      case AttributeValue::Type::kText:
        append_bytes(key, attribute.value.as_text().data(), attribute.value.as_text().size());
        break;
      case AttributeValue::Type::kIntegers:
        append_bytes(key, attribute.value.as_integers().data(), attribute.value.as_integers().size_bytes());
        break;
      default: {
        const std::int64_t bits = attribute.value.as_integer();
        append_bytes(key, &bits, sizeof bits);
      }
    }
  }
}

}  // namespace

Instrument::Instrument(std::string name, InstrumentKind kind, bool is_integer, InstrumentOptions options,
                       const MetricOptions& metric_options, std::int64_t created_ns)
    : name_(std::move(name)),
      kind_(kind),
      is_integer_(is_integer),
      options_(std::move(options)),
      metric_options_(metric_options),
      created_ns_(created_ns) {}

bool Instrument::is_acceptable(NumberValue value) const {
  if (is_gauge()) return true;
  const double number = as_double(value);
  if (!std::isfinite(number)) return false;
  return number >= 0 || kind_ == InstrumentKind::kUpDownCounter;
}

Temporality Instrument::temporality() const {
  const bool is_cumulative =
      metric_options_.temporality == TemporalityPreference::kCumulative || kind_ == InstrumentKind::kUpDownCounter ||
      (kind_ == InstrumentKind::kObservableCounter && metric_options_.temporality == TemporalityPreference::kLowMemory);
  return is_cumulative ? Temporality::kCumulative : Temporality::kDelta;
}

Series& Instrument::find_series(std::span<const Attribute> attributes) {
  if (attributes.empty()) return plain_;
  thread_local std::vector<Attribute> sorted;
  thread_local std::string key;
  normalize(attributes, sorted);
  if (sorted.empty()) return plain_;
  make_key(sorted, key);
  if (const auto found = series_.find(std::string_view(key)); found != series_.end()) return found->second;
  // One place is plain_'s, one that of the overflow.
  if (series_.size() + 2 >= kMaxPoints) {
    sorted.assign({Attribute(kOverflowKey, true)});
    make_key(sorted, key);
  }
  Series& series = series_[key];
  if (series.attributes.empty()) {
    for (const Attribute& attribute : sorted) {
      series.attributes.emplace_back(attribute.key, to_stored(attribute.value));
    }
  }
  return series;
}

void Instrument::offer_exemplar(Series& series, NumberValue value) {
  if (metric_options_.exemplar_filter == ExemplarFilter::kAlwaysOff || is_observable()) return;
  const SpanContext context = current_context();
  const bool is_sampled = context && (context.trace_flags & 1) != 0;
  if (metric_options_.exemplar_filter == ExemplarFilter::kTraceBased && !is_sampled) return;
  const Exemplar exemplar{base::wall_ns(), value, context};
  if (series.explicit_histogram) {
    series.explicit_histogram->offer(as_double(value), exemplar);
  } else if (series.exponential_histogram) {
    series.exponential_histogram->offer(exemplar);
  } else {
    series.exemplar = exemplar;
  }
}

void Instrument::aggregate(Series& series, NumberValue value) {
  const bool is_first = series.start_ns == 0;
  if (is_first) series.start_ns = base::wall_ns();
  if (kind_ == InstrumentKind::kHistogram) {
    if (metric_options_.histogram_aggregation == HistogramAggregation::kExplicit) {
      if (!series.explicit_histogram) series.explicit_histogram.emplace(options_.bounds);
      series.explicit_histogram->record(as_double(value));
    } else {
      if (!series.exponential_histogram) series.exponential_histogram.emplace();
      series.exponential_histogram->record(as_double(value));
    }
  } else if (is_gauge() || is_first) {
    series.value = value;
  } else {
    series.value = add(series.value, value);
  }
}

void Instrument::record(NumberValue value, std::span<const Attribute> attributes) {
  if (is_inherited()) return;
  if (!is_acceptable(value)) {
    num_rejected_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const std::lock_guard lock(mutex_);
  Series& series = find_series(attributes);
  aggregate(series, value);
  offer_exemplar(series, value);
}

void Instrument::set_callback(ObserveCallback callback) {
  const std::lock_guard lock(callback_mutex_);
  callback_ = std::move(callback);
}

bool Instrument::has_callback() const {
  const std::lock_guard lock(callback_mutex_);
  return callback_ != nullptr;
}

void Instrument::run_callback() {
  if (!is_observable()) return;
  const std::lock_guard callback_lock(callback_mutex_);
  {
    const std::lock_guard lock(mutex_);
    clear_series();
  }
  if (callback_ == nullptr) return;
  try {
    Observer observer(*this);
    callback_(observer);
  } catch (const std::exception&) {
    // Telemetry does not stop a run: what was observed before the failure is exported, the failure counted.
    num_rejected_.fetch_add(1, std::memory_order_relaxed);
  }
}

template <typename Visit>
void Instrument::for_each_series(Visit&& visit) {
  if (plain_.start_ns != 0) visit(plain_, std::string());
  for (auto& [key, series] : series_) visit(series, key);
}

void Instrument::clear_series() {
  plain_ = {};
  series_.clear();
}

NumberPoint Instrument::number_point(Series& series, std::int64_t now_ns) {
  NumberPoint point{
      .attributes = series.attributes, .start_ns = 0, .time_ns = now_ns, .value = series.value, .exemplars = {}};
  if (series.exemplar) point.exemplars.push_back(*std::exchange(series.exemplar, std::nullopt));
  return point;
}

template <typename Data>
std::optional<MetricData> Instrument::finish(Data data) {
  if (data.points.empty()) return std::nullopt;
  return MetricData{name_, options_.description, options_.unit, std::move(data)};
}

std::optional<MetricData> Instrument::collect(std::int64_t now_ns) {
  if (is_inherited()) return std::nullopt;
  run_callback();
  const std::lock_guard lock(mutex_);
  const bool is_delta = temporality() == Temporality::kDelta;
  const std::int64_t previous_ns = std::exchange(last_collection_ns_, now_ns);
  const auto start_of = [&](const Series& series) {
    if (is_delta && previous_ns != 0) return previous_ns;
    return is_observable() ? created_ns_ : series.start_ns;
  };
  std::optional<MetricData> metric;
  if (is_gauge()) {
    GaugeData data;
    for_each_series([&](Series& series, const std::string&) { data.points.push_back(number_point(series, now_ns)); });
    metric = finish(std::move(data));
    if (!metric_options_.repeat_gauges) clear_series();
    return metric;
  }
  if (kind_ == InstrumentKind::kHistogram &&
      metric_options_.histogram_aggregation == HistogramAggregation::kExponential) {
    ExponentialHistogramData data{.points = {}, .temporality = temporality()};
    for_each_series([&](Series& series, const std::string&) {
      ExponentialHistogramPoint& point = data.points.emplace_back(series.exponential_histogram->collect());
      point.attributes = series.attributes;
      point.start_ns = start_of(series);
      point.time_ns = now_ns;
    });
    metric = finish(std::move(data));
  } else if (kind_ == InstrumentKind::kHistogram) {
    HistogramData data{.points = {}, .temporality = temporality()};
    for_each_series([&](Series& series, const std::string&) {
      HistogramPoint& point = data.points.emplace_back(series.explicit_histogram->collect());
      point.attributes = series.attributes;
      point.start_ns = start_of(series);
      point.time_ns = now_ns;
    });
    metric = finish(std::move(data));
  } else {
    SumData data{.points = {}, .temporality = temporality(), .is_monotonic = kind_ != InstrumentKind::kUpDownCounter};
    for_each_series([&](Series& series, const std::string& key) {
      NumberPoint& point = data.points.emplace_back(number_point(series, now_ns));
      point.start_ns = start_of(series);
      if (!is_observable() || !is_delta) return;
      const auto [reported, is_new] = reported_.try_emplace(key, point.value);
      if (!is_new) point.value = subtract(point.value, std::exchange(reported->second, point.value));
    });
    metric = finish(std::move(data));
  }
  if (is_delta) clear_series();
  return metric;
}

}  // namespace internal
}  // namespace pharos::lens
