// Field numbers are those of opentelemetry-proto 1.x; each enumeration below carries the name of its message.
#include "pharos/lens/otlp/encode.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <protozero/pbf_writer.hpp>
#include <string_view>

#include "pharos/lens/otlp/utf8.h"

namespace pharos::lens::otlp {
namespace {

using Writer = protozero::pbf_writer;
using Tag = protozero::pbf_tag_type;

/// ResourceSpans, ResourceMetrics, ResourceLogs and their Scope… messages number their parts alike.
constexpr Tag kRequestResourceBlock = 1;
constexpr Tag kBlockResource = 1, kBlockScopeBlock = 2;
constexpr Tag kResourceAttributes = 1;
constexpr Tag kScopeBlockScope = 1, kScopeBlockItem = 2;
constexpr Tag kScopeName = 1;

/// Flags of Span and Span.Link: "is remote is known" and "is remote" (trace.proto, SpanFlags).
constexpr std::uint32_t kHasIsRemote = 0x100, kIsRemote = 0x200;
constexpr std::int32_t kSpanKindInternal = 1;

void write_text(Writer& writer, Tag tag, std::string_view text) {
  if (is_utf8(text)) {
    writer.add_string(tag, text.data(), text.size());
  } else {
    writer.add_string(tag, repair_utf8(text));
  }
}

void write_text_unless_empty(Writer& writer, Tag tag, std::string_view text) {
  if (!text.empty()) write_text(writer, tag, text);
}

/// A message without fields; protozero leaves out one that ends as it began.
void write_empty_message(Writer& writer, Tag tag) { writer.add_message(tag, "", 0); }

/// Big-endian bytes, as ids travel.
void store_big_endian(std::uint64_t value, char* bytes) {
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (56 - 8 * i));
}

void write_trace_id(Writer& writer, Tag tag, const SpanContext& context) {
  std::array<char, 16> bytes;
  store_big_endian(context.trace_id_high, bytes.data());
  store_big_endian(context.trace_id_low, bytes.data() + 8);
  writer.add_bytes(tag, bytes.data(), bytes.size());
}

void write_span_id(Writer& writer, Tag tag, std::uint64_t span_id) {
  std::array<char, 8> bytes;
  store_big_endian(span_id, bytes.data());
  writer.add_bytes(tag, bytes.data(), bytes.size());
}

// AnyValue: a member of a oneof is written even when it is zero or empty.
enum AnyValue : Tag { kAnyString = 1, kAnyBool = 2, kAnyInt = 3, kAnyDouble = 4, kAnyArray = 5 };
constexpr Tag kArrayValues = 1;

void write_scalar(Writer& value, bool scalar) { value.add_bool(kAnyBool, scalar); }
void write_scalar(Writer& value, std::int64_t scalar) { value.add_int64(kAnyInt, scalar); }
void write_scalar(Writer& value, double scalar) { value.add_double(kAnyDouble, scalar); }
void write_scalar(Writer& value, const std::string& scalar) { write_text(value, kAnyString, scalar); }

template <typename Element>
void write_scalar(Writer& value, const std::vector<Element>& list) {
  if (list.empty()) return write_empty_message(value, kAnyArray);
  Writer array(value, kAnyArray);
  for (const auto& element : list) {
    Writer item(array, kArrayValues);
    if constexpr (std::is_same_v<Element, bool>) {
      write_scalar(item, static_cast<bool>(element));
    } else {
      write_scalar(item, element);
    }
  }
}

void write_attributes(Writer& writer, Tag tag, const StoredAttributes& attributes) {
  constexpr Tag kKey = 1, kValue = 2;
  for (const auto& [key, value] : attributes) {
    Writer pair(writer, tag);
    write_text(pair, kKey, key);
    Writer any(pair, kValue);
    std::visit([&any](const auto& held) { write_scalar(any, held); }, value);
  }
}

void write_resource(Writer& block, const Resource& resource) {
  Writer message(block, kBlockResource);
  write_attributes(message, kResourceAttributes, resource.attributes);
}

void write_scope(Writer& scope_block, std::string_view name) {
  Writer scope(scope_block, kScopeBlockScope);
  write_text_unless_empty(scope, kScopeName, name);
}

void write_wall_time(Writer& writer, Tag tag, std::int64_t wall_ns) {
  writer.add_fixed64(tag, static_cast<std::uint64_t>(wall_ns));
}

void write_count_unless_zero(Writer& writer, Tag tag, std::uint32_t count) {
  if (count != 0) writer.add_uint32(tag, count);
}

// ---- traces

void write_event(Writer& span, Tag tag, const SpanEvent& event, const Resource& resource) {
  enum Event : Tag { kTime = 1, kName = 2, kAttributes = 3, kNumDroppedAttributes = 4 };
  Writer message(span, tag);
  write_wall_time(message, kTime, resource.to_wall_ns(event.time_ns));
  write_text_unless_empty(message, kName, event.name);
  write_attributes(message, kAttributes, event.attributes);
  write_count_unless_zero(message, kNumDroppedAttributes, event.num_dropped_attributes);
}

void write_link(Writer& span, Tag tag, const SpanContext& context) {
  enum Link : Tag { kTraceId = 1, kSpanId = 2, kFlags = 6 };
  Writer message(span, tag);
  write_trace_id(message, kTraceId, context);
  write_span_id(message, kSpanId, context.span_id);
  message.add_fixed32(kFlags, kHasIsRemote | (context.is_remote ? kIsRemote : 0));
}

/// An unset status is an empty message; only a failure has a text (lens.md section 8.5).
void write_status(Writer& span, Tag tag, const SpanData& data) {
  enum Status : Tag { kMessage = 2, kCode = 3 };
  if (data.status == StatusCode::kUnset) return write_empty_message(span, tag);
  Writer message(span, tag);
  if (data.status == StatusCode::kError) write_text_unless_empty(message, kMessage, data.status_description);
  message.add_enum(kCode, static_cast<std::int32_t>(data.status));
}

void write_span(Writer& scope_block, const SpanData& data, const Resource& resource) {
  enum Span : Tag {
    kTraceId = 1,
    kSpanId = 2,
    kTraceState = 3,
    kParentSpanId = 4,
    kName = 5,
    kKind = 6,
    kStart = 7,
    kEnd = 8,
    kAttributes = 9,
    kNumDroppedAttributes = 10,
    kEvent = 11,
    kNumDroppedEvents = 12,
    kLink = 13,
    kNumDroppedLinks = 14,
    kStatus = 15,
    kFlags = 16
  };
  Writer span(scope_block, kScopeBlockItem);
  write_trace_id(span, kTraceId, data.context);
  write_span_id(span, kSpanId, data.context.span_id);
  write_text_unless_empty(span, kTraceState, data.tracestate);
  if (data.parent_span_id != 0) write_span_id(span, kParentSpanId, data.parent_span_id);
  write_text_unless_empty(span, kName, data.name);
  span.add_enum(kKind, kSpanKindInternal);
  write_wall_time(span, kStart, resource.to_wall_ns(data.start_ns));
  // A span that was still open has no end; receivers refuse one that ends before it starts.
  write_wall_time(span, kEnd, resource.to_wall_ns(std::max(data.start_ns, data.end_ns)));
  write_attributes(span, kAttributes, data.attributes);
  write_count_unless_zero(span, kNumDroppedAttributes, data.num_dropped_attributes);
  for (const SpanEvent& event : data.events) write_event(span, kEvent, event, resource);
  write_count_unless_zero(span, kNumDroppedEvents, data.num_dropped_events);
  for (const SpanContext& link : data.links) write_link(span, kLink, link);
  write_count_unless_zero(span, kNumDroppedLinks, data.num_dropped_links);
  write_status(span, kStatus, data);
  span.add_fixed32(kFlags, kHasIsRemote | (data.parent_is_remote ? kIsRemote : 0));
}

// ---- metrics

void write_number(Writer& writer, Tag int_tag, Tag double_tag, const NumberValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) {
    writer.add_sfixed64(int_tag, *whole);
  } else {
    writer.add_double(double_tag, std::get<double>(value));
  }
}

void write_exemplars(Writer& point, Tag tag, const std::vector<Exemplar>& exemplars) {
  enum ExemplarField : Tag { kTime = 2, kDouble = 3, kSpanId = 4, kTraceId = 5, kInt = 6 };
  for (const Exemplar& exemplar : exemplars) {
    Writer message(point, tag);
    write_wall_time(message, kTime, exemplar.time_ns);
    write_number(message, kInt, kDouble, exemplar.value);
    if (exemplar.context) {
      write_span_id(message, kSpanId, exemplar.context.span_id);
      write_trace_id(message, kTraceId, exemplar.context);
    }
  }
}

void write_times(Writer& point, std::int64_t start_ns, std::int64_t time_ns) {
  constexpr Tag kStart = 2, kTime = 3;
  if (start_ns != 0) write_wall_time(point, kStart, start_ns);
  write_wall_time(point, kTime, time_ns);
}

constexpr Tag kDataPoint = 1, kTemporality = 2;

void write_point(Writer& data, const NumberPoint& value) {
  enum NumberDataPoint : Tag { kDouble = 4, kExemplars = 5, kInt = 6, kAttributes = 7 };
  Writer point(data, kDataPoint);
  write_attributes(point, kAttributes, value.attributes);
  write_times(point, value.start_ns, value.time_ns);
  write_number(point, kInt, kDouble, value.value);
  write_exemplars(point, kExemplars, value.exemplars);
}

void write_point(Writer& data, const HistogramPoint& value) {
  enum HistogramDataPoint : Tag {
    kCount = 4,
    kSum = 5,
    kBucketCounts = 6,
    kBounds = 7,
    kExemplars = 8,
    kAttributes = 9,
    kMin = 11,
    kMax = 12
  };
  Writer point(data, kDataPoint);
  write_attributes(point, kAttributes, value.attributes);
  write_times(point, value.start_ns, value.time_ns);
  point.add_fixed64(kCount, value.count);
  point.add_double(kSum, value.sum);
  point.add_packed_fixed64(kBucketCounts, value.bucket_counts.begin(), value.bucket_counts.end());
  point.add_packed_double(kBounds, value.bounds.begin(), value.bounds.end());
  write_exemplars(point, kExemplars, value.exemplars);
  if (value.min) point.add_double(kMin, *value.min);
  if (value.max) point.add_double(kMax, *value.max);
}

void write_buckets(Writer& point, Tag tag, const ExponentialHistogramPoint::Buckets& buckets) {
  constexpr Tag kOffset = 1, kCounts = 2;
  if (buckets.counts.empty()) return;
  Writer message(point, tag);
  message.add_sint32(kOffset, buckets.offset);
  message.add_packed_uint64(kCounts, buckets.counts.begin(), buckets.counts.end());
}

void write_point(Writer& data, const ExponentialHistogramPoint& value) {
  enum ExponentialHistogramDataPoint : Tag {
    kAttributes = 1,
    kCount = 4,
    kSum = 5,
    kScale = 6,
    kZeroCount = 7,
    kPositive = 8,
    kNegative = 9,
    kExemplars = 11,
    kMin = 12,
    kMax = 13
  };
  Writer point(data, kDataPoint);
  write_attributes(point, kAttributes, value.attributes);
  write_times(point, value.start_ns, value.time_ns);
  point.add_fixed64(kCount, value.count);
  point.add_double(kSum, value.sum);
  point.add_sint32(kScale, value.scale);
  point.add_fixed64(kZeroCount, value.zero_count);
  write_buckets(point, kPositive, value.positive);
  write_buckets(point, kNegative, value.negative);
  write_exemplars(point, kExemplars, value.exemplars);
  if (value.min) point.add_double(kMin, *value.min);
  if (value.max) point.add_double(kMax, *value.max);
}

template <typename Point>
void write_points(Writer& data, const std::vector<Point>& points) {
  for (const Point& point : points) write_point(data, point);
}

void write_temporality(Writer& data, Temporality temporality) {
  data.add_enum(kTemporality, static_cast<std::int32_t>(temporality));
}

struct DataWriter {
  enum Metric : Tag { kGauge = 5, kSum = 7, kHistogram = 9, kExponentialHistogram = 10 };
  Writer& metric;

  void operator()(const GaugeData& gauge) const {
    Writer data(metric, kGauge);
    write_points(data, gauge.points);
  }
  void operator()(const SumData& sum) const {
    constexpr Tag kIsMonotonic = 3;
    Writer data(metric, kSum);
    write_points(data, sum.points);
    write_temporality(data, sum.temporality);
    if (sum.is_monotonic) data.add_bool(kIsMonotonic, true);
  }
  void operator()(const HistogramData& histogram) const {
    Writer data(metric, kHistogram);
    write_points(data, histogram.points);
    write_temporality(data, histogram.temporality);
  }
  void operator()(const ExponentialHistogramData& histogram) const {
    Writer data(metric, kExponentialHistogram);
    write_points(data, histogram.points);
    write_temporality(data, histogram.temporality);
  }
};

struct ScopedMetric {
  std::string_view scope;
  const MetricData* metric;
};

/// A metric without a point says nothing and is not sent.
bool has_points(const MetricData& metric) {
  return std::visit([](const auto& data) { return !data.points.empty(); }, metric.data);
}

void write_metric(Writer& scope_block, const MetricData& data) {
  enum Metric : Tag { kName = 1, kDescription = 2, kUnit = 3 };
  Writer metric(scope_block, kScopeBlockItem);
  write_text_unless_empty(metric, kName, data.name);
  write_text_unless_empty(metric, kDescription, data.description);
  write_text_unless_empty(metric, kUnit, data.unit);
  std::visit(DataWriter{metric}, data.data);
}

// ---- logs

void write_log(Writer& scope_block, const LogData& data) {
  enum LogRecord : Tag {
    kTime = 1,
    kSeverityNumber = 2,
    kSeverityText = 3,
    kBody = 5,
    kAttributes = 6,
    kNumDroppedAttributes = 7,
    kFlags = 8,
    kTraceId = 9,
    kSpanId = 10,
    kObservedTime = 11
  };
  Writer record(scope_block, kScopeBlockItem);
  write_wall_time(record, kTime, data.time_ns);
  write_wall_time(record, kObservedTime, data.observed_time_ns);
  if (data.severity != Severity::kUnspecified) {
    record.add_enum(kSeverityNumber, static_cast<std::int32_t>(data.severity));
  }
  write_text_unless_empty(record, kSeverityText, data.severity_text);
  {
    Writer body(record, kBody);
    write_scalar(body, data.body);
  }
  write_attributes(record, kAttributes, data.attributes);
  write_count_unless_zero(record, kNumDroppedAttributes, data.num_dropped_attributes);
  if (data.context) {
    record.add_fixed32(kFlags, data.context.trace_flags);
    write_trace_id(record, kTraceId, data.context);
    write_span_id(record, kSpanId, data.context.span_id);
  }
}

/// Scope names of `items` in order of first appearance. There are few: a search in a short list beats a map.
template <typename Item, typename ScopeOf>
std::vector<std::string_view> scopes_of(std::span<const Item> items, ScopeOf scope_of) {
  std::vector<std::string_view> scopes;
  for (const Item& item : items) {
    const std::string_view scope = scope_of(item);
    if (std::find(scopes.begin(), scopes.end(), scope) == scopes.end()) scopes.push_back(scope);
  }
  return scopes;
}

/// One resource block; in it one block per scope with the items of that scope, in their order.
template <typename Item, typename ScopeOf, typename WriteItem>
void write_scope_blocks(Writer& block, std::span<const Item> items, ScopeOf scope_of, WriteItem write_item) {
  for (const std::string_view scope : scopes_of(items, scope_of)) {
    Writer scope_block(block, kBlockScopeBlock);
    write_scope(scope_block, scope);
    for (const Item& item : items) {
      if (scope_of(item) == scope) write_item(scope_block, item);
    }
  }
}

std::string_view span_scope(const SpanData& span) {
  return span.scope == Scope::kHelpers ? "nemo.lens.helpers" : "nemo.lens";
}

}  // namespace

std::string encode_traces(std::span<const SpanData> spans, const Resource& resource) {
  constexpr std::size_t kUsualSpanBytes = 256;
  std::string bytes;
  bytes.reserve(1024 + spans.size() * kUsualSpanBytes);
  Writer request(bytes);
  Writer block(request, kRequestResourceBlock);
  write_resource(block, resource);
  write_scope_blocks(block, spans, span_scope, [&resource](Writer& scope_block, const SpanData& span) {
    write_span(scope_block, span, resource);
  });
  block.commit();
  return bytes;
}

std::string encode_metrics(const MetricsData& metrics, const Resource& resource) {
  std::string bytes;
  Writer request(bytes);
  Writer block(request, kRequestResourceBlock);
  write_resource(block, resource);
  std::vector<ScopedMetric> with_points;
  for (const ScopeMetrics& scope : metrics) {
    for (const MetricData& metric : scope.metrics) {
      if (has_points(metric)) with_points.push_back({scope.scope, &metric});
    }
  }
  write_scope_blocks(
      block, std::span<const ScopedMetric>(with_points), [](const ScopedMetric& item) { return item.scope; },
      [](Writer& scope_block, const ScopedMetric& item) { write_metric(scope_block, *item.metric); });
  block.commit();
  return bytes;
}

std::string encode_logs(std::span<const LogData> logs, const Resource& resource) {
  std::string bytes;
  Writer request(bytes);
  Writer block(request, kRequestResourceBlock);
  write_resource(block, resource);
  const auto scope_of = [](const LogData& log) -> std::string_view { return log.scope; };
  write_scope_blocks(block, logs, scope_of, write_log);
  block.commit();
  return bytes;
}

}  // namespace pharos::lens::otlp
