// Sends made-up telemetry with a Sender, as the environment's OTEL_* variables say, for tests against real receivers.
//   otlp_probe [--spans N] [--points N] [--logs N] [--requests N] [--cancel-after-ms N]
// Each request's outcome and each warning is a line of JSON on standard output. What is sent is the same at every run.
// Exit status: 0 all accepted, 1 something was not, 2 wrong arguments or environment.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/lens/otlp/encode.h"
#include "pharos/lens/otlp/options.h"
#include "pharos/lens/otlp/sender.h"

namespace pharos::lens::otlp {
namespace {

constexpr std::int64_t kStartNs = 1'800'000'000'000'000'000;  // Unix
constexpr std::int64_t kMillisecondNs = 1'000'000;
constexpr std::uint64_t kTraceIdHigh = 0x0123456789abcdef;

Resource sample_resource() {
  return {.attributes = {{"service.name", "otlp-probe"},
                         {"dl.rank", std::int64_t{0}},
                         {"ratio", 0.5},
                         {"flag", true},
                         {"names", std::vector<std::string>{"a", "häuser 語 🚂"}}},
          .wall_anchor_ns = kStartNs,
          .monotonic_anchor_ns = 1000};
}

SpanContext sample_context(int index) {
  const auto id = static_cast<std::uint64_t>(index) + 1;
  return {.trace_id_high = kTraceIdHigh, .trace_id_low = 7, .span_id = 0xfedc000000000000 | id};
}

SpanData sample_span(int index) {
  SpanData span;
  span.name = "probe.step";
  span.scope = index % 2 == 0 ? Scope::kHelpers : Scope::kLens;
  span.context = sample_context(index);
  if (index > 0) span.parent_span_id = sample_context(0).span_id;
  span.parent_is_remote = index == 2;
  span.start_ns = 1000 + index * kMillisecondNs;
  span.end_ns = span.start_ns + kMillisecondNs;
  span.attributes = {{"iteration", std::int64_t{index}},
                     {"loss", 2.25},
                     {"empty", ""},
                     {"is_skipped", false},
                     {"sizes", std::vector<std::int64_t>{1, -2, 3}},
                     {"shares", std::vector<double>{0.5, 1.5}},
                     {"flags", std::vector<bool>{true, false}},
                     {"nothing", std::vector<std::string>{}}};
  if (index % 3 == 1) {
    span.status = StatusCode::kError;
    span.status_description = "ValueError: boom";
    span.events = {{"exception", span.start_ns + 5, {{"exception.type", "ValueError"}, {"exception.message", "boom"}}}};
    SpanContext remote = sample_context(index + 100);
    remote.is_remote = true;
    span.links = {sample_context(0), remote};
    span.num_dropped_attributes = 3;
  }
  return span;
}

template <typename Point>
Point sample_point(int index) {
  Point point;
  point.attributes = {{"phase", "train"}, {"index", std::int64_t{index}}};
  point.start_ns = kStartNs;
  point.time_ns = kStartNs + 10 * kMillisecondNs;
  point.exemplars = {{point.time_ns, 0.75, sample_context(0)}};
  return point;
}

/// The four kinds in turn, each metric with one point.
MetricData sample_metric(int index) {
  MetricData metric{"probe.metric." + std::to_string(index), "what a probe measures", "s", {}};
  if (index % 4 == 0) {
    auto point = sample_point<NumberPoint>(index);
    point.start_ns = 0;
    point.value = 1.5 * index;
    metric.data = GaugeData{{point}};
  } else if (index % 4 == 1) {
    auto point = sample_point<NumberPoint>(index);
    point.value = std::int64_t{4096};
    metric.data = SumData{{point}, Temporality::kCumulative, true};
  } else if (index % 4 == 2) {
    auto point = sample_point<HistogramPoint>(index);
    point.count = 3;
    point.sum = 7.5;
    point.min = 0.5;
    point.max = 5;
    point.bucket_counts = {1, 2, 0};
    point.bounds = {1, 10};
    metric.data = HistogramData{{point}, Temporality::kCumulative};
  } else {
    auto point = sample_point<ExponentialHistogramPoint>(index);
    point.count = 4;
    point.sum = 3;
    point.min = -1;
    point.max = 2;
    point.scale = -1;
    point.zero_count = 1;
    point.positive = {-2, {1, 1}};
    point.negative = {3, {1}};
    metric.data = ExponentialHistogramData{{point}, Temporality::kDelta};
  }
  return metric;
}

LogData sample_log(int index) {
  LogData log;
  log.time_ns = kStartNs + index;
  log.observed_time_ns = log.time_ns + 1;
  log.severity = Severity::kWarn;
  log.severity_text = "WARN";
  log.body = "record " + std::to_string(index);
  log.scope = index % 2 == 0 ? "pharos" : "pharos.checkpoint";
  log.attributes = {{"code.line.number", std::int64_t{95}}};
  if (index % 2 == 1) log.context = sample_context(0);
  return log;
}

template <typename Item>
std::vector<Item> samples(int num_items, Item (*make)(int)) {
  std::vector<Item> items(static_cast<std::size_t>(num_items));
  for (int i = 0; i < num_items; ++i) items[static_cast<std::size_t>(i)] = make(i);
  return items;
}

std::string encode_sample(Signal signal, int num_items) {
  const Resource resource = sample_resource();
  if (signal == Signal::kTraces) return encode_traces(samples(num_items, sample_span), resource);
  if (signal == Signal::kMetrics) {
    return encode_metrics({{.scope = "nemo.lens", .metrics = samples(num_items, sample_metric)}}, resource);
  }
  return encode_logs(samples(num_items, sample_log), resource);
}

void print(const nlohmann::json& line) {
  std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

using Arguments = std::map<std::string, std::int64_t>;

Arguments parse_arguments(int num_arguments, char** arguments) {
  Arguments values = {{"--spans", 0}, {"--points", 0}, {"--logs", 0}, {"--requests", 1}, {"--cancel-after-ms", -1}};
  for (int i = 1; i < num_arguments; i += 2) {
    const auto found = values.find(arguments[i]);
    if (found == values.end() || i + 1 == num_arguments) {
      throw base::UserError(
          {.what = std::string(arguments[i]) + " is not an argument, or has no number.", .where = "command line"});
    }
    found->second = std::atoll(arguments[i + 1]);
  }
  return values;
}

/// Sends everything and waits for all outcomes. Returns whether all was accepted.
bool send_all(const Arguments& arguments) {
  std::vector<std::string> warnings;
  Sender sender(options_from_environment(warnings));
  for (const std::string& warning : warnings) print({{"warning", warning}});
  bool is_all_accepted = true;
  const std::map<Signal, std::int64_t> counts = {{Signal::kTraces, arguments.at("--spans")},
                                                 {Signal::kMetrics, arguments.at("--points")},
                                                 {Signal::kLogs, arguments.at("--logs")}};
  const std::int64_t start_ns = base::monotonic_ns();
  for (std::int64_t round = 0; round < arguments.at("--requests"); ++round) {
    for (const auto& [signal, count] : counts) {
      if (count == 0) continue;
      while (!sender.has_room(signal)) sender.pump(std::chrono::milliseconds(50));
      sender.submit(signal, encode_sample(signal, static_cast<int>(count)), static_cast<std::uint64_t>(count),
                    [&is_all_accepted, start_ns, signal = signal](const Outcome& outcome) {
                      is_all_accepted = is_all_accepted && outcome.rejected == 0 && outcome.failed == 0;
                      print({{"signal", signal_name(signal)},
                             {"accepted", outcome.accepted},
                             {"rejected", outcome.rejected},
                             {"failed", outcome.failed},
                             {"message", outcome.message},
                             {"seconds", static_cast<double>(base::monotonic_ns() - start_ns) * 1e-9}});
                    });
    }
  }
  const std::int64_t cancel_after_ms = arguments.at("--cancel-after-ms");
  while (!sender.is_idle()) {
    if (cancel_after_ms >= 0 && base::monotonic_ns() - start_ns >= cancel_after_ms * kMillisecondNs) sender.cancel();
    sender.pump(std::chrono::milliseconds(20));
  }
  return is_all_accepted;
}

}  // namespace
}  // namespace pharos::lens::otlp

int main(int num_arguments, char** arguments) {
  using namespace pharos::lens::otlp;
  try {
    return send_all(parse_arguments(num_arguments, arguments)) ? 0 : 1;
  } catch (const pharos::base::UserError& error) {
    print({{"error", error.what()}});
    return 2;
  }
}
