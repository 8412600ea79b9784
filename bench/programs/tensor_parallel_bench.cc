// Backward pass of a column-parallel layer on two local ranks, one thread each: communication beside the GEMMs, as
// nn/parallel/linear.cc does it, against waiting for it at once. 2048 tokens, 512 wide, 1376 outputs a rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/parallel/linear.h"

namespace pharos::nn {
namespace {

constexpr std::int64_t kTokens = 2048, kHidden = 512, kOutputs = 1376;

struct Tensors {
  at::Tensor input = at::randn({1, kTokens, kHidden}), part = at::randn({1, kTokens / 2, kHidden});
  at::Tensor weight = at::randn({kOutputs, kHidden}), output_grad = at::randn({kTokens, kOutputs});
  at::Tensor weight_grad = at::zeros({kOutputs, kHidden});
};

at::Tensor input_gradient(const Tensors& t) { return at::mm(t.output_grad, t.weight).unsqueeze(0); }

void add_weight_gradient(Tensors& t, const at::Tensor& input) {
  at::addmm_out(t.weight_grad, t.weight_grad, t.output_grad.t(), input.squeeze(0));
}

void whole_tokens(Tensors& t, const TensorParallel& parallel, bool overlaps) {
  const at::Tensor grad = input_gradient(t);
  comm::Work work = parallel.group->all_reduce(grad, comm::ReduceOp::kSum, {"input gradient"});
  if (!overlaps) work.wait();
  add_weight_gradient(t, t.input);
  work.wait();
}

void divided_tokens(Tensors& t, const TensorParallel& parallel, bool overlaps) {
  TokenGather gather(t.part, parallel, "input");
  at::Tensor input;
  if (!overlaps) input = gather.wait();
  TokenScatter scatter(input_gradient(t), parallel, "input gradient");
  at::Tensor grad;
  if (!overlaps) grad = scatter.wait();
  if (overlaps) input = gather.wait();
  add_weight_gradient(t, input);
  if (overlaps) grad = scatter.wait();
  benchmark::DoNotOptimize(grad);
}

void measure(benchmark::State& state, void (*step)(Tensors&, const TensorParallel&, bool), bool overlaps) {
  at::set_num_threads(1);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    Tensors tensors;
    const TensorParallel parallel{&world.all(), true};
    step(tensors, parallel, overlaps);
    if (world.rank() == 0) {
      for ([[maybe_unused]] auto iteration : state) step(tensors, parallel, overlaps);
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) step(tensors, parallel, overlaps);
    }
  });
}

BENCHMARK_CAPTURE(measure, all_reduce_overlapped, whole_tokens, true)
    ->UseRealTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(measure, all_reduce_waited_for, whole_tokens, false)
    ->UseRealTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(measure, gather_scatter_overlapped, divided_tokens, true)
    ->UseRealTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(measure, gather_scatter_waited_for, divided_tokens, false)
    ->UseRealTime()
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pharos::nn
