// JSON lines of spans, metrics and logs (lens.md section 8.4).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/lens/exporter.h"

namespace pharos::lens {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

Json to_json(const std::vector<double>& values) {
  Json array = Json::array();
  for (const double value : values) array.push_back(to_json(value));
  return array;
}

template <typename T>
Json to_json(const T& value) {
  return value;
}

Json to_json(const StoredValue& value) {
  return std::visit([](const auto& typed) { return to_json(typed); }, value);
}

Json to_json(const NumberValue& value) {
  return std::visit([](const auto& typed) { return to_json(typed); }, value);
}

Json to_json(const StoredAttributes& attributes) {
  Json object = Json::object();
  for (const auto& [key, value] : attributes) object[key] = to_json(value);
  return object;
}

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string trace_id_text(const SpanContext& context) {
  return "0x" + hexadecimal(context.trace_id_high) + hexadecimal(context.trace_id_low);
}

/// As Python writes a text in a list. `text` is printable ASCII.
std::string python_literal(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string literal(1, quote);
  for (const char character : text) {
    if (character == '\\' || character == quote) literal += '\\';
    literal += character;
  }
  return literal + quote;
}

/// "['{key=vendor, value=1}', …]" of "vendor=1,…"; "[]" of nothing.
std::string trace_state_text(std::string_view tracestate) {
  std::string list;
  while (!tracestate.empty()) {
    const std::string_view member = tracestate.substr(0, tracestate.find(','));
    tracestate.remove_prefix(std::min(tracestate.size(), member.size() + 1));
    const std::size_t equals = std::min(member.find('='), member.size());
    const std::string_view value = member.substr(std::min(equals + 1, member.size()));
    if (!list.empty()) list += ", ";
    list += python_literal("{key=" + std::string(member.substr(0, equals)) + ", value=" + std::string(value) + "}");
  }
  return "[" + list + "]";
}

Json to_json(const SpanContext& context, std::string_view tracestate = "") {
  return {{"trace_id", trace_id_text(context)},
          {"span_id", "0x" + hexadecimal(context.span_id)},
          {"trace_state", trace_state_text(tracestate)}};
}

Json status_json(const SpanData& span) {
  constexpr const char* kNames[] = {"UNSET", "OK", "ERROR"};
  Json status = {{"status_code", kNames[static_cast<int>(span.status)]}};
  if (span.status == StatusCode::kError) status["description"] = span.status_description;
  return status;
}

Json to_json(const Resource& resource) { return {{"attributes", to_json(resource.attributes)}, {"schema_url", ""}}; }

Json to_json(const std::vector<Exemplar>& exemplars) {
  Json array = Json::array();
  for (const Exemplar& exemplar : exemplars) {
    array.push_back({{"filtered_attributes", Json::object()},
                     {"value", to_json(exemplar.value)},
                     {"time_unix_nano", exemplar.time_ns},
                     {"span_id", "0x" + hexadecimal(exemplar.context.span_id)},
                     {"trace_id", trace_id_text(exemplar.context)}});
  }
  return array;
}

/// What the points of all kinds begin with.
template <typename Point>
Json point_head(const Point& point) {
  return {{"attributes", to_json(point.attributes)},
          {"start_time_unix_nano", point.start_ns != 0 ? Json(point.start_ns) : Json(nullptr)},
          {"time_unix_nano", point.time_ns}};
}

Json to_json(const std::optional<double>& value) { return value ? to_json(*value) : Json(nullptr); }

Json point_json(const NumberPoint& point) {
  Json json = point_head(point);
  json["value"] = to_json(point.value);
  json["exemplars"] = to_json(point.exemplars);
  return json;
}

Json point_json(const HistogramPoint& point) {
  Json json = point_head(point);
  json["count"] = point.count;
  json["sum"] = to_json(point.sum);
  json["bucket_counts"] = point.bucket_counts;
  json["explicit_bounds"] = to_json(point.bounds);
  json["min"] = to_json(point.min);
  json["max"] = to_json(point.max);
  json["exemplars"] = to_json(point.exemplars);
  return json;
}

Json buckets_json(const ExponentialHistogramPoint::Buckets& buckets) {
  return {{"offset", buckets.offset}, {"bucket_counts", buckets.counts}};
}

Json point_json(const ExponentialHistogramPoint& point) {
  Json json = point_head(point);
  json["count"] = point.count;
  json["sum"] = to_json(point.sum);
  json["scale"] = point.scale;
  json["zero_count"] = point.zero_count;
  json["positive"] = buckets_json(point.positive);
  json["negative"] = buckets_json(point.negative);
  json["flags"] = 0;
  json["min"] = to_json(point.min);
  json["max"] = to_json(point.max);
  json["exemplars"] = to_json(point.exemplars);
  return json;
}

Json to_json(const MetricData& metric) {
  return {{"name", metric.name},
          {"description", metric.description},
          {"unit", metric.unit},
          {"data", std::visit(
                       []<typename Data>(const Data& data) {
                         Json json = {{"data_points", Json::array()}};
                         for (const auto& point : data.points) json["data_points"].push_back(point_json(point));
                         if constexpr (!std::is_same_v<Data, GaugeData>) {
                           json["aggregation_temporality"] = static_cast<int>(data.temporality);
                         }
                         if constexpr (std::is_same_v<Data, SumData>) json["is_monotonic"] = data.is_monotonic;
                         return json;
                       },
                       metric.data)}};
}

std::string dump(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string to_json_line(const SpanData& span, const Resource& resource) {
  const auto time = [&resource](std::int64_t monotonic_ns) {
    return base::format_utc_time(resource.to_wall_ns(monotonic_ns));
  };
  Json line;
  line["name"] = span.name;
  line["context"] = to_json(span.context, span.tracestate);
  line["kind"] = "SpanKind.INTERNAL";
  line["parent_id"] = span.parent_span_id != 0 ? Json("0x" + hexadecimal(span.parent_span_id)) : Json(nullptr);
  line["start_time"] = time(span.start_ns);
  line["end_time"] = span.end_ns != 0 ? Json(time(span.end_ns)) : Json(nullptr);
  line["status"] = status_json(span);
  line["attributes"] = to_json(span.attributes);
  line["events"] = Json::array();
  for (const SpanEvent& event : span.events) {
    line["events"].push_back(
        {{"name", event.name}, {"timestamp", time(event.time_ns)}, {"attributes", to_json(event.attributes)}});
  }
  line["links"] = Json::array();
  for (const SpanContext& link : span.links) {
    line["links"].push_back({{"context", to_json(link)}, {"attributes", Json::object()}});
  }
  line["resource"] = to_json(resource);
  return dump(line);
}

std::string to_json_line(const CounterEvent& event, const Resource& resource) {
  return dump({{"counters", event.name},
               {"start_time", base::format_utc_time(resource.to_wall_ns(event.start_ns))},
               {"end_time", base::format_utc_time(resource.to_wall_ns(event.end_ns))},
               {"attributes", to_json(event.attributes)},
               {"resource", to_json(resource)}});
}

std::string to_json_line(const MetricsData& metrics, const Resource& resource) {
  Json scopes = Json::array();
  for (const ScopeMetrics& scope : metrics) {
    Json list = Json::array();
    for (const MetricData& metric : scope.metrics) list.push_back(to_json(metric));
    scopes.push_back(
        {{"scope", {{"name", scope.scope}, {"version", ""}, {"schema_url", ""}, {"attributes", Json::object()}}},
         {"metrics", std::move(list)},
         {"schema_url", ""}});
  }
  Json block = {{"resource", to_json(resource)}, {"scope_metrics", std::move(scopes)}, {"schema_url", ""}};
  Json line = {{"resource_metrics", Json::array()}};
  line["resource_metrics"].push_back(std::move(block));
  return dump(line);
}

std::string to_json_line(const LogData& log, const Resource& resource) {
  return dump({{"body", log.body},
               {"severity_number", static_cast<int>(log.severity)},
               {"severity_text", log.severity_text},
               {"attributes", to_json(log.attributes)},
               {"dropped_attributes", log.num_dropped_attributes},
               {"timestamp", base::format_utc_time(log.time_ns)},
               {"observed_timestamp", base::format_utc_time(log.observed_time_ns)},
               {"trace_id", trace_id_text(log.context)},
               {"span_id", "0x" + hexadecimal(log.context.span_id)},
               {"trace_flags", log.context ? int{log.context.trace_flags} : 0},
               {"resource", to_json(resource)},
               {"event_name", nullptr}});
}

}  // namespace pharos::lens
