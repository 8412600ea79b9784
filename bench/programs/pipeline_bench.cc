// What the executor costs per action: schedules walked by a runner that does nothing, on one rank (no transfers) and on
// two local ranks, one thread each, with a tensor of four bytes per hop. `per_action` is in seconds; on two ranks it is
// of one rank and has the hop through Gloo in it.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <numeric>

#include "pharos/comm/testing.h"
#include "pharos/pipeline/executor.h"

namespace pharos::pipeline {
namespace {

constexpr int kNumMicrobatches = 16;

class IdleRunner : public StageRunner {
 public:
  IdleRunner(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  std::vector<TensorSpec> boundary(int, int) override { return {{{1}, at::kFloat}}; }

  Tensors forward(int, int chunk, Tensors) override {
    return schedule_.stage_of[rank_][chunk] + 1 < schedule_.num_ranks * schedule_.num_chunks ? Tensors{value_}
                                                                                             : Tensors{};
  }

  Tensors backward(int, int chunk, Tensors) override {
    return schedule_.stage_of[rank_][chunk] > 0 ? Tensors{value_} : Tensors{};
  }

  void weight(int, int) override {}

 private:
  const Schedule& schedule_;
  int rank_;
  at::Tensor value_ = at::zeros({1});
};

Schedule schedule_for(const char* name, int num_ranks) {
  const int num_chunks = std::string_view(name) == "interleaved" || std::string_view(name) == "zbv" ? 2 : 1;
  return make_schedule(name, {.num_ranks = num_ranks, .num_chunks = num_chunks, .num_microbatches = kNumMicrobatches});
}

void count_actions(benchmark::State& state, const Schedule& schedule, int rank) {
  const auto num_actions = static_cast<double>(schedule.actions[rank].size());
  state.counters["actions"] = num_actions;
  state.counters["per_action"] =
      benchmark::Counter(num_actions, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void one_rank(benchmark::State& state, const char* name) {
  const Schedule schedule = schedule_for(name, 1);
  Executor executor(schedule, 0, {}, at::kCPU);
  IdleRunner runner(schedule, 0);
  std::int64_t step = 0;
  for ([[maybe_unused]] auto iteration : state) benchmark::DoNotOptimize(executor.run(runner, ++step));
  count_actions(state, schedule, 0);
}

void two_ranks(benchmark::State& state, const char* name) {
  at::set_num_threads(1);
  const Schedule schedule = schedule_for(name, 2);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    const int rank = static_cast<int>(world.rank());
    std::vector<std::int64_t> ranks(2);
    std::iota(ranks.begin(), ranks.end(), 0);
    Executor executor(schedule, rank, {&world.group("pp-up", ranks), &world.group("pp-down", ranks)}, at::kCPU);
    IdleRunner runner(schedule, rank);
    executor.run(runner, 0);  // connects
    if (rank == 0) {
      std::int64_t step = 0;
      for ([[maybe_unused]] auto iteration : state) executor.run(runner, ++step);
      count_actions(state, schedule, rank);
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i)
        executor.run(runner, static_cast<std::int64_t>(i) + 1);
    }
  });
}

BENCHMARK_CAPTURE(one_rank, 1f1b, "1f1b");
BENCHMARK_CAPTURE(one_rank, interleaved, "interleaved");
BENCHMARK_CAPTURE(one_rank, zbv, "zbv");
BENCHMARK_CAPTURE(two_ranks, 1f1b, "1f1b")->UseRealTime()->Iterations(50)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(two_ranks, interleaved, "interleaved")->UseRealTime()->Iterations(50)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(two_ranks, zbv, "zbv")->UseRealTime()->Iterations(50)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pharos::pipeline
