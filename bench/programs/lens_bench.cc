// What a span site costs. Goals: a disabled site at most 1 ns, a recorded span with two attributes at most 100 ns.
//
// 2026-11-29, 2 cores of an AMD EPYC with AVX-512, all busy with other work (bench/run lens, best of 3 rounds):
//   gate_query                          0.4 ns
//   site_of_disabled_group              1.8 ns (1.0 ns of CPU time in an earlier run)
//   span_without_attributes             101 ns
//   span_with_two_attributes             91 ns (72 ns of CPU time in an earlier run)
//   span_with_two_attributes_exported   111 ns
//   span_with_four_attributes           106 ns
//   span_cm_with_two_attributes         109 ns
//   three_nested_spans                  245 ns
//   spans_of_eight_threads               95 ns (10.6 M spans/s together)
//   span_of_a_run_time_name             109 ns
//   attribute_set_later                  17 ns
//
// Later that day, the program before and after next_id(), thread_state() and the context stack became inline and keys
// are copied without a call; alternating on a machine with 10 busy processes, best CPU time of 32 runs each:
//   span_with_two_attributes   149 → 110 ns
//   span_without_attributes     90 →  85 ns
//   three_nested_spans         284 → 271 ns
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/span.h"

namespace pharos::lens {
namespace {

/// Takes batches as a network exporter would and throws them away.
class DiscardingExporter : public Exporter {
 public:
  std::string name() const override { return "discard"; }
};

/// Telemetry with its ring in a temporary file, as in a run.
class RunningTelemetry {
 public:
  explicit RunningTelemetry(GroupMask groups, std::vector<std::shared_ptr<Exporter>> exporters = {}) {
    std::string pattern = (std::filesystem::temp_directory_path() / "lens_bench_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    telemetry_ =
        &Telemetry::init({.groups = groups, .run_folder = folder_, .pipeline = {.exporters = std::move(exporters)}});
  }
  ~RunningTelemetry() {
    telemetry_->shutdown();
    std::filesystem::remove_all(folder_);
  }

 private:
  std::filesystem::path folder_;
  Telemetry* telemetry_;
};

void gate_query(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kJob));
  for (auto _ : state) benchmark::DoNotOptimize(is_span_group_enabled(Group::kStep));
}
BENCHMARK(gate_query);

void site_without_telemetry(benchmark::State& state) {
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(site_without_telemetry);

void site_of_disabled_group(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kJob));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(site_of_disabled_group);

void span_without_attributes(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step");
  }
}
BENCHMARK(span_without_attributes);

void span_with_two_attributes(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(span_with_two_attributes);

void span_with_four_attributes(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true},
                {"megatron.loss", 2.5}, {"megatron.schedule", "1f1b"});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(span_with_four_attributes);

/// What a span costs its own thread while another one drains and exports.
void span_with_two_attributes_exported(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep), {std::make_shared<DiscardingExporter>()});
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(span_with_two_attributes_exported);

void span_cm_with_two_attributes(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    const SpanScope span = span_cm("bench.cold", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(span_cm_with_two_attributes);

void three_nested_spans(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(outer, Group::kStep, "bench.outer", {"megatron.iteration", iteration});
    PHAROS_SPAN(middle, Group::kStep, "bench.middle", {"megatron.iteration", iteration});
    PHAROS_SPAN(inner, Group::kStep, "bench.inner", {"megatron.iteration", iteration});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(three_nested_spans);

/// Made before and removed after the threads of a benchmark.
std::unique_ptr<RunningTelemetry> shared_telemetry;

/// items_per_second: spans of all threads together.
void spans_of_eight_threads(benchmark::State& state) {
  std::int64_t iteration = 0;
  for (auto _ : state) {
    PHAROS_SPAN(span, Group::kStep, "bench.step", {"megatron.iteration", iteration}, {kGoodput, true});
    benchmark::DoNotOptimize(++iteration);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(spans_of_eight_threads)
    ->Threads(8)
    ->UseRealTime()
    ->Setup([](const benchmark::State&) {
      shared_telemetry = std::make_unique<RunningTelemetry>(group_bit(Group::kStep));
    })
    ->Teardown([](const benchmark::State&) { shared_telemetry.reset(); });

void span_of_a_run_time_name(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  std::int64_t iteration = 0;
  for (auto _ : state) {
    const ManagedSpan span = managed_span(Group::kStep, "bench.step", {"megatron.iteration", iteration});
    benchmark::DoNotOptimize(++iteration);
  }
}
BENCHMARK(span_of_a_run_time_name);

void attribute_set_later(benchmark::State& state) {
  const RunningTelemetry telemetry(group_bit(Group::kStep));
  PHAROS_SPAN(span, Group::kStep, "bench.step");
  std::int64_t iteration = 0;
  for (auto _ : state) span.set("megatron.iteration", ++iteration);
}
BENCHMARK(attribute_set_later);

}  // namespace
}  // namespace pharos::lens
