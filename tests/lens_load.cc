// Records a known amount of telemetry through setup_telemetry, as the environment says, and reports what became of it,
// for tests/telemetry_process_test.py:
//   lens_load [--spans N] [--logs N] [--adds N] [--seconds S] [--linger S] [--open-spans N] [--shutdown-ms N]
//             [--flush-ms N] [--run-folder DIR] [--ring 1] [--signals 1] [--file PATH] [--report FILE]
//   lens_load --read RING
// Spans, log records and additions to a counter are spread over S seconds. The report is a line of JSON, on standard
// output or in FILE. --file adds an exporter of JSON lines. --read prints what a ring file holds. Exit status: 0, or 2
// for wrong arguments or environment.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/logs/logger.h"
#include "pharos/lens/metrics/meter.h"
#include "pharos/lens/record/ring.h"
#include "pharos/lens/setup/setup_telemetry.h"
#include "pharos/lens/span.h"

namespace pharos::lens {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Arguments {
  std::map<std::string, std::string> values = {
      {"--spans", "0"},      {"--logs", "0"},       {"--adds", "0"},    {"--seconds", "0"},   {"--linger", "0"},
      {"--open-spans", "0"}, {"--shutdown-ms", ""}, {"--flush-ms", ""}, {"--run-folder", ""}, {"--ring", ""},
      {"--signals", ""},     {"--file", ""},        {"--report", ""},   {"--read", ""}};

  Arguments(int num_arguments, char** arguments) {
    for (int i = 1; i < num_arguments; i += 2) {
      const auto found = values.find(arguments[i]);
      if (found == values.end() || i + 1 == num_arguments) {
        throw base::UserError(
            {.what = std::string(arguments[i]) + " is not an argument, or has no value.", .where = "command line"});
      }
      found->second = arguments[i + 1];
    }
  }
  const std::string& text(const char* name) const { return values.at(name); }
  bool has(const char* name) const { return !values.at(name).empty(); }
  std::int64_t number(const char* name) const { return std::atoll(values.at(name).c_str()); }
  double seconds(const char* name) const { return std::atof(values.at(name).c_str()); }
};

Telemetry* start(const Arguments& arguments, Json& report) {
  const ProcessEnvironment environment;
  const LensSettings settings = load_settings(environment, {});
  SetupInput input;
  input.run_folder = arguments.text("--run-folder");
  input.keeps_ring = arguments.has("--ring");
  input.handles_signals = arguments.has("--signals");
  if (arguments.has("--file")) input.exporters.push_back(make_file_exporter(arguments.text("--file")));
  const SetupResult result = setup_telemetry(settings, input, environment);
  report["warnings"] = result.warnings;
  return result.telemetry;
}

/// A log record at one of several call sites, because each may only log so often.
void log_at_some_site(const Logger& logger, std::int64_t number) {
  switch (number % 4) {
    case 0:
      return logger.info("zero", {{"number", number}});
    case 1:
      return logger.info("one", {{"number", number}});
    case 2:
      return logger.warn("two", {{"number", number}});
    default:
      return logger.error("three", {{"number", number}});
  }
}

void record(const Arguments& arguments, Telemetry* telemetry) {
  const std::int64_t num_spans = arguments.number("--spans");
  const std::int64_t num_logs = arguments.number("--logs");
  const std::int64_t num_adds = arguments.number("--adds");
  const std::int64_t num_steps = std::max({num_spans, num_logs, num_adds});
  const double seconds = arguments.seconds("--seconds");
  const Logger logger("lens_load");
  Meter* meter = telemetry != nullptr ? telemetry->meter() : nullptr;
  std::optional<Counter<std::int64_t>> counter;
  if (meter != nullptr && num_adds > 0) counter = meter->create_counter<std::int64_t>("megatron.lens_load.adds");
  const Clock::time_point begin = Clock::now();
  for (std::int64_t step = 0; step < num_steps; ++step) {
    if (step < num_spans) managed_span(Group::kStep, "lens_load.step", {"number", step}).end();
    if (step < num_logs) log_at_some_site(logger, step);
    if (step < num_adds && counter) counter->add(1);
    if (seconds <= 0) continue;
    const double due_s = seconds * static_cast<double>(step + 1) / static_cast<double>(num_steps);
    std::this_thread::sleep_until(begin +
                                  std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due_s)));
  }
}

Json describe(const ItemCounts& counts) {
  return {{"exported", counts.exported}, {"dropped", counts.dropped}, {"failed", counts.failed},
          {"rejected", counts.rejected}, {"queued", counts.queued},   {"failed_locally", counts.failed_locally}};
}

void add_counts(Telemetry& telemetry, Json& report) {
  const TelemetryCounts counts = telemetry.counts();
  report["recorded"] = counts.recorded;
  report["truncated"] = counts.truncated;
  report["overwritten"] = counts.overwritten;
  report["refused"] = counts.refused;
  report["emitted_logs"] = telemetry.logs() != nullptr ? telemetry.logs()->counts().emitted : 0;
  report["suppressed_logs"] = counts.suppressed_logs;
  for (const otlp::Signal signal : {otlp::Signal::kTraces, otlp::Signal::kMetrics, otlp::Signal::kLogs}) {
    report[otlp::signal_name(signal)] = describe(counts.signals[static_cast<std::size_t>(signal)]);
  }
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Json run(const Arguments& arguments) {
  Json report;
  Telemetry* telemetry = start(arguments, report);
  report["is_active"] = telemetry != nullptr;
  const Clock::time_point begin = Clock::now();
  {
    std::vector<ManagedSpan> open;
    for (std::int64_t i = 0; i < arguments.number("--open-spans"); ++i) {
      open.push_back(managed_span(Group::kStep, "lens_load.open"));
    }
    record(arguments, telemetry);
    std::this_thread::sleep_for(std::chrono::duration<double>(arguments.seconds("--linger")));
    report["recording_s"] = seconds_since(begin);
    const Clock::time_point end = Clock::now();
    if (telemetry != nullptr && arguments.has("--flush-ms")) {
      report["is_flushed"] = telemetry->force_flush(std::chrono::milliseconds(arguments.number("--flush-ms")));
    }
    if (telemetry != nullptr && arguments.has("--shutdown-ms")) {
      telemetry->shutdown(std::chrono::milliseconds(arguments.number("--shutdown-ms")));
    } else if (telemetry != nullptr) {
      telemetry->shutdown();
    }
    report["shutdown_s"] = seconds_since(end);
  }
  if (telemetry != nullptr) add_counts(*telemetry, report);
  return report;
}

Json read(const std::string& path) {
  const RingContents contents = read_ring(path);
  std::vector<std::int64_t> numbers;
  for (const SpanData& span : contents.spans) {
    for (const auto& [key, value] : span.attributes) {
      if (key == "number") numbers.push_back(std::get<std::int64_t>(value));
    }
  }
  return {{"is_shut_down", contents.is_shut_down},
          {"numbers", numbers},
          {"num_open", contents.open_spans.size()},
          {"num_overwritten", contents.num_overwritten}};
}

}  // namespace
}  // namespace pharos::lens

int main(int num_arguments, char** values) {
  try {
    const pharos::lens::Arguments arguments(num_arguments, values);
    const auto report =
        arguments.has("--read") ? pharos::lens::read(arguments.text("--read")) : pharos::lens::run(arguments);
    if (arguments.has("--report")) {
      std::ofstream(arguments.text("--report")) << report.dump() << "\n";
    } else {
      std::cout << report.dump() << std::endl;
    }
    return 0;
  } catch (const pharos::base::UserError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
