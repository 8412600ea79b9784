// Records spans at a given rate from several threads and says what became of them, as one line of JSON:
//
//     build/release/bench/lens_throughput --threads 4 --rate 100000 --seconds 10 --exporter discard
//
// recorded = exported + overwritten + spans of failed exports, when an exporter is on. cpu_s is the time of the whole
// process, recording_cpu_s that of the recording threads alone; cores = cpu_s / elapsed_s.
#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/otlp/options.h"
#include "pharos/lens/span.h"

namespace pharos::lens {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  int num_threads = 4;
  double spans_per_second = 100000;  ///< of all threads together; 0: as many as possible
  double seconds = 10;
  std::string exporter = "none";
  std::string run_folder;
};

class DiscardingExporter : public Exporter {
 public:
  std::string name() const override { return "discard"; }
};

/// The one place that decides where spans go.
TelemetryOptions make_telemetry_options(const Arguments& arguments) {
  TelemetryOptions options;
  options.groups = group_bit(Group::kStep);
  options.service_name = "lens_throughput";
  options.run_folder = arguments.run_folder;
  options.file_exporter = arguments.exporter == "file";
  options.console_exporter = arguments.exporter == "console";
  if (arguments.exporter == "discard") options.pipeline.exporters.push_back(std::make_shared<DiscardingExporter>());
  if (arguments.exporter == "otlp") {
    std::vector<std::string> warnings;
    options.pipeline.otlp = otlp::options_from_environment(warnings);
    for (const std::string& warning : warnings) std::cerr << warning << "\n";
    options.collects_metrics = false;
  }
  return options;
}

void record_one(int thread, std::int64_t number) {
  PHAROS_SPAN(span, Group::kStep, "bench.throughput", {"bench.thread", thread}, {"bench.number", number});
}

/// Records what is due, looks again a millisecond later. Returns the CPU time of the thread in seconds.
double record_until(Clock::time_point start, const Arguments& arguments, int thread) {
  const double rate = arguments.spans_per_second / arguments.num_threads;
  std::int64_t num_recorded = 0;
  for (double elapsed_s = 0; elapsed_s < arguments.seconds;
       elapsed_s = std::chrono::duration<double>(Clock::now() - start).count()) {
    const std::int64_t due = rate > 0 ? static_cast<std::int64_t>(elapsed_s * rate) : num_recorded + 1000;
    while (num_recorded < due) record_one(thread, num_recorded++);
    if (rate > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

double process_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

nlohmann::ordered_json measure(const Arguments& arguments) {
  Telemetry& telemetry = Telemetry::init(make_telemetry_options(arguments));
  const Clock::time_point start = Clock::now();
  std::vector<double> cpu_s(static_cast<std::size_t>(arguments.num_threads), 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < arguments.num_threads; ++thread) {
    threads.emplace_back([&, thread] { cpu_s[thread] = record_until(start, arguments, thread); });
  }
  for (std::thread& thread : threads) thread.join();
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - start).count();
  const double cpu_in_time_s = process_cpu_s();
  telemetry.shutdown();
  const double shutdown_s = std::chrono::duration<double>(Clock::now() - start).count() - elapsed_s;
  const TelemetryCounts counts = telemetry.counts();
  double recording_cpu_s = 0;
  for (const double seconds : cpu_s) recording_cpu_s += seconds;
  return {{"exporter", arguments.exporter},
          {"threads", arguments.num_threads},
          {"wanted_spans_per_second", arguments.spans_per_second},
          {"elapsed_s", elapsed_s},
          {"shutdown_s", shutdown_s},
          {"cpu_s", cpu_in_time_s},
          {"recording_cpu_s", recording_cpu_s},
          {"cores", cpu_in_time_s / elapsed_s},
          {"spans_per_second", static_cast<double>(counts.recorded) / elapsed_s},
          {"recorded", counts.recorded},
          {"exported", counts.exported},
          {"overwritten", counts.overwritten},
          {"refused", counts.refused},
          {"failed_exports", counts.failed_exports},
          {"dropped_attributes", counts.dropped_attributes},
          {"truncated", counts.truncated}};
}

}  // namespace
}  // namespace pharos::lens

int main(int argc, char** argv) {
  pharos::lens::Arguments arguments;
  CLI::App app("Records spans with two attributes at a rate and prints what became of them as JSON");
  app.add_option("--threads", arguments.num_threads, "Recording threads")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rate", arguments.spans_per_second, "Spans/s of all threads together; 0: as many as possible")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", arguments.seconds, "How long")->check(CLI::PositiveNumber)->capture_default_str();
  CLI::Option* folder = app.add_option("--run-folder", arguments.run_folder, "Where the ring and spans.jsonl go");
  app.add_option("--exporter", arguments.exporter,
                 "none, discard, console, file (needs --run-folder), or otlp (OTEL_EXPORTER_OTLP_*)")
      ->check(CLI::IsMember({"none", "discard", "console", "file", "otlp"}))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (arguments.exporter == "file" && folder->empty()) {
    std::cerr << "--exporter file needs --run-folder: spans.jsonl goes below it.\n";
    return 2;
  }
  try {
    std::cout << pharos::lens::measure(arguments).dump() << std::endl;
  } catch (const pharos::base::UserError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
