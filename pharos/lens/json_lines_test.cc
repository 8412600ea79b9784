// JSON lines of metrics and logs, and the exporters that write them. Those of spans: telemetry_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "pharos/lens/exporter.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

using Json = nlohmann::ordered_json;

Resource example_resource() {
  Resource resource;
  resource.attributes = {{"service.name", std::string("pharos")}, {"dl.rank", std::int64_t{0}}};
  return resource;
}

MetricsData example_metrics() {
  const SpanContext context{.trace_id_high = 1, .trace_id_low = 2, .span_id = 3};
  HistogramPoint histogram{.attributes = {},
                           .start_ns = 5,
                           .time_ns = 9,
                           .count = 2,
                           .sum = 412.5,
                           .min = 0.0,
                           .max = 412.5,
                           .bucket_counts = {1, 1},
                           .bounds = {0},
                           .exemplars = {}};
  histogram.exemplars.push_back({.time_ns = 7, .value = 412.5, .context = context});
  ExponentialHistogramPoint exponential;
  exponential.time_ns = 9;
  exponential.scale = 3;
  exponential.positive = {.offset = -1, .counts = {1, 2}};
  const auto number = [](std::int64_t start_ns, NumberValue value) {
    return NumberPoint{.attributes = {}, .start_ns = start_ns, .time_ns = 9, .value = value, .exemplars = {}};
  };
  ScopeMetrics scope{"nemo.lens", {}};
  scope.metrics.push_back({"h", "d", "ms", HistogramData{{histogram}}});
  scope.metrics.push_back({"g", "", "", GaugeData{{number(0, 2.5)}}});
  scope.metrics.push_back({"s", "", "", SumData{{number(5, std::int64_t{2})}}});
  scope.metrics.push_back({"e", "", "", ExponentialHistogramData{{exponential}, Temporality::kDelta}});
  return {scope};
}

LogData example_log() {
  LogData log;
  log.time_ns = 1'700'000'000'000'001'000;
  log.observed_time_ns = 1'700'000'000'000'002'000;
  log.severity = Severity::kWarn;
  log.severity_text = "WARN";
  log.body = "slow \"disk\"\n";
  log.attributes = {{"iteration", std::int64_t{7}}};
  log.context.trace_flags = 0;
  return log;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

using Keys = std::vector<std::string>;

TEST(SpanLines, TraceStateIsAListAsPythonPrintsIt) {
  const std::pair<const char*, const char*> kCases[] = {
      {"", "[]"},
      {"vendor=1", "['{key=vendor, value=1}']"},
      {"a=1,b@c=x:2", "['{key=a, value=1}', '{key=b@c, value=x:2}']"},
      {"a=it's", "[\"{key=a, value=it's}\"]"},
      {"a='\"\\", R"(['{key=a, value=\'"\\}'])"},
  };
  for (const auto& [tracestate, expected] : kCases) {
    SpanData span;
    span.tracestate = tracestate;
    span.links = {{.span_id = 1}};
    const Json json = Json::parse(to_json_line(span, example_resource()));
    EXPECT_EQ(json["context"]["trace_state"], expected);
    EXPECT_EQ(json["links"][0]["context"]["trace_state"], "[]");
  }
}

TEST(MetricLines, NestResourceScopeAndMetrics) {
  const std::string line = to_json_line(example_metrics(), example_resource());
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const Json json = Json::parse(line);
  EXPECT_EQ(keys_of(json), Keys{"resource_metrics"});
  const Json& block = json.at("resource_metrics").at(0);
  EXPECT_EQ(keys_of(block), (Keys{"resource", "scope_metrics", "schema_url"}));
  EXPECT_EQ(block["resource"].dump(), R"({"attributes":{"service.name":"pharos","dl.rank":0},"schema_url":""})");
  const Json& scope = block["scope_metrics"].at(0);
  EXPECT_EQ(scope["scope"].dump(), R"({"name":"nemo.lens","version":"","schema_url":"","attributes":{}})");
  const Json& metrics = scope["metrics"];
  ASSERT_EQ(metrics.size(), 4u);
  for (const Json& metric : metrics) EXPECT_EQ(keys_of(metric), (Keys{"name", "description", "unit", "data"}));
  EXPECT_EQ(keys_of(metrics[0]["data"]), (Keys{"data_points", "aggregation_temporality"}));
  EXPECT_EQ(keys_of(metrics[1]["data"]), (Keys{"data_points"}));
  EXPECT_EQ(keys_of(metrics[2]["data"]), (Keys{"data_points", "aggregation_temporality", "is_monotonic"}));
  EXPECT_EQ(metrics[2]["data"]["aggregation_temporality"], 2);
  EXPECT_EQ(metrics[3]["data"]["aggregation_temporality"], 1);
}

TEST(MetricLines, PointsOfEachKind) {
  const Json json = Json::parse(to_json_line(example_metrics(), example_resource()));
  const Json& metrics = json["resource_metrics"][0]["scope_metrics"][0]["metrics"];
  const auto point = [&metrics](int index) { return metrics.at(index)["data"]["data_points"].at(0).dump(); };
  EXPECT_EQ(
      point(0),
      R"({"attributes":{},"start_time_unix_nano":5,"time_unix_nano":9,"count":2,"sum":412.5,"bucket_counts":[1,1],)"
      R"("explicit_bounds":[0.0],"min":0.0,"max":412.5,"exemplars":[{"filtered_attributes":{},"value":412.5,)"
      R"("time_unix_nano":7,"span_id":"0x0000000000000003","trace_id":"0x00000000000000010000000000000002"}]})");
  EXPECT_EQ(point(1), R"({"attributes":{},"start_time_unix_nano":null,"time_unix_nano":9,"value":2.5,"exemplars":[]})");
  EXPECT_EQ(point(2), R"({"attributes":{},"start_time_unix_nano":5,"time_unix_nano":9,"value":2,"exemplars":[]})");
  EXPECT_EQ(point(3),
            R"({"attributes":{},"start_time_unix_nano":null,"time_unix_nano":9,"count":0,"sum":0.0,"scale":3,)"
            R"("zero_count":0,"positive":{"offset":-1,"bucket_counts":[1,2]},"negative":{"offset":0,)"
            R"("bucket_counts":[]},"flags":0,"min":null,"max":null,"exemplars":[]})");
}

TEST(MetricLines, WhatIsNoJsonNumberIsText) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [value, text] : {std::pair{std::nan(""), "NaN"}, {infinity, "Infinity"}, {-infinity, "-Infinity"}}) {
    NumberPoint point;
    point.value = value;
    const MetricsData metrics = {{"s", {{"g", "", "", GaugeData{{point}}}}}};
    const Json json = Json::parse(to_json_line(metrics, {}));
    EXPECT_EQ(json["resource_metrics"][0]["scope_metrics"][0]["metrics"][0]["data"]["data_points"][0]["value"], text);
  }
}

TEST(LogLines, HaveTheKeysOfTheConsoleExporter) {
  LogData log = example_log();
  EXPECT_EQ(to_json_line(log, example_resource()),
            R"({"body":"slow \"disk\"\n","severity_number":13,"severity_text":"WARN","attributes":{"iteration":7},)"
            R"("dropped_attributes":0,"timestamp":"2023-11-14T22:13:20.000001Z",)"
            R"("observed_timestamp":"2023-11-14T22:13:20.000002Z","trace_id":"0x00000000000000000000000000000000",)"
            R"("span_id":"0x0000000000000000","trace_flags":0,"resource":{"attributes":{"service.name":"pharos",)"
            R"("dl.rank":0},"schema_url":""},"event_name":null})");
  log.context = {.trace_id_high = 1, .trace_id_low = 2, .span_id = 3, .trace_flags = 3};
  log.attributes.emplace_back("x", std::nan(""));
  const Json json = Json::parse(to_json_line(log, {}));
  EXPECT_EQ(json["trace_id"], "0x00000000000000010000000000000002");
  EXPECT_EQ(json["span_id"], "0x0000000000000003");
  EXPECT_EQ(json["trace_flags"], 3);
  EXPECT_EQ(json["attributes"]["x"], "NaN");
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

void export_everything(Exporter& exporter) {
  const Resource resource = example_resource();
  SpanData span;
  span.name = "megatron.train";
  exporter.export_spans({span, span}, resource);
  exporter.export_metrics(example_metrics(), resource);
  exporter.export_metrics({}, resource);  // nothing to say: no line
  exporter.export_logs({example_log()}, resource);
}

TEST(FileExporter, EachSignalHasItsFileBesideTheSpans) {
  struct Case {
    const char *spans, *metrics, *logs;
  };
  const Case cases[] = {{"spans.jsonl", "metrics.jsonl", "logs.jsonl"},
                        {"spans_rank_3.jsonl", "metrics_rank_3.jsonl", "logs_rank_3.jsonl"},
                        {"mine.jsonl", "metrics_mine.jsonl", "logs_mine.jsonl"}};
  for (const Case& c : cases) {
    const TemporaryFolder folder;
    const auto exporter = make_file_exporter(folder.path() / c.spans);
    for (int round = 1; round <= 2; ++round) {
      export_everything(*exporter);
      EXPECT_EQ(lines_of(folder.path() / c.spans).size(), 2u * round);
      EXPECT_EQ(lines_of(folder.path() / c.metrics),
                std::vector<std::string>(round, to_json_line(example_metrics(), example_resource())));
      EXPECT_EQ(lines_of(folder.path() / c.logs),
                std::vector<std::string>(round, to_json_line(example_log(), example_resource())));
    }
  }
}

TEST(FileExporter, ASignalWithoutAFileIsNotWritten) {
  const TemporaryFolder folder;
  const auto exporter = make_file_exporter(ExportFiles{.logs = folder.path() / "only.jsonl"});
  export_everything(*exporter);
  EXPECT_EQ(lines_of(folder.path() / "only.jsonl").size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(FileExporter, AFolderThatIsMissingIsAFailureOfThatBatch) {
  const TemporaryFolder folder;
  const auto exporter = make_file_exporter(folder.path() / "later" / "spans.jsonl");
  EXPECT_THROW(exporter->export_logs({example_log()}, {}), std::exception);
  EXPECT_THROW(exporter->export_metrics(example_metrics(), {}), std::exception);
  std::filesystem::create_directory(folder.path() / "later");
  exporter->export_logs({example_log()}, {});
  EXPECT_EQ(lines_of(folder.path() / "later" / "logs.jsonl").size(), 1u);
}

TEST(ConsoleExporter, WritesAllSignalsToOneDescriptor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  export_everything(*make_console_exporter(ends[1]));
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(text.find("\n\n"), std::string::npos);
  EXPECT_NE(text.find(to_json_line(example_metrics(), example_resource()) + "\n"), std::string::npos);
  EXPECT_TRUE(text.ends_with(to_json_line(example_log(), example_resource()) + "\n"));
}

}  // namespace
}  // namespace pharos::lens
