// What a dispatcher costs per token, forward and backward, beside the experts' own work: one rank (permuting alone),
// and two local ranks, one thread each. 2048 tokens a rank, 512 wide, 4 of 16 experts each. And the experts' product
// (8192 rows, 512 to 1376, in 16 unequal runs) against one dense product of as many operations.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/linear.h"
#include "pharos/nn/moe/dispatcher.h"
#include "pharos/nn/moe/experts.h"

namespace pharos::nn {
namespace {

using config::FlexBackend;
using config::TokenDispatcher;

constexpr std::int64_t kTokens = 2048, kHidden = 512, kInner = 1376, kExperts = 16, kTopk = 4;

struct Tokens {
  at::Tensor tokens = at::randn({kTokens, kHidden}).requires_grad_(), grad = at::randn({kTokens, kHidden});
  Routing routing{at::rand({kTokens, kExperts}).argsort(std::int64_t{1}).narrow(1, 0, kTopk).contiguous(),
                  at::rand({kTokens, kTopk}).requires_grad_(), std::nullopt};
};

/// There and back with experts that do nothing.
void travel(const Dispatcher& dispatcher, Tokens& t) {
  const at::Tensor output =
      dispatcher.run(t.tokens, t.routing, std::nullopt, [](const ExpertRows& rows) { return rows.rows; }, {});
  torch::autograd::backward({output}, {t.grad});
  t.tokens.mutable_grad().reset();
}

void set_cost(benchmark::State& state) {
  state.counters["per_token"] =
      benchmark::Counter(kTokens, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void one_rank(benchmark::State& state) {
  at::set_num_threads(1);
  Tokens tokens;
  const auto dispatcher = make_dispatcher(TokenDispatcher::kAllToAll, FlexBackend::kNative, {kExperts, kTopk}, {});
  for ([[maybe_unused]] auto iteration : state) travel(*dispatcher, tokens);
  set_cost(state);
}
BENCHMARK(one_rank)->UseRealTime()->Iterations(20)->Unit(benchmark::kMillisecond);

void two_ranks(benchmark::State& state, TokenDispatcher type) {
  at::set_num_threads(1);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    Tokens tokens;
    const auto dispatcher = make_dispatcher(type, FlexBackend::kNative, {kExperts, kTopk},
                                            {.expert = &world.all(), .expert_tensor = nullptr, .both = &world.all()});
    travel(*dispatcher, tokens);
    if (world.rank() == 0) {
      for ([[maybe_unused]] auto iteration : state) travel(*dispatcher, tokens);
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) travel(*dispatcher, tokens);
    }
  });
  set_cost(state);
}
BENCHMARK_CAPTURE(two_ranks, allgather, TokenDispatcher::kAllGather)
    ->UseRealTime()
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(two_ranks, alltoall, TokenDispatcher::kAllToAll)
    ->UseRealTime()
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(two_ranks, flex_native, TokenDispatcher::kFlex)
    ->UseRealTime()
    ->Iterations(20)
    ->Unit(benchmark::kMillisecond);

tensor::Parameter weight_of(const std::vector<std::int64_t>& shape) {
  tensor::Parameter weight;
  weight.data = at::randn(shape).requires_grad_();
  weight.main_grad = at::zeros(shape);
  return weight;
}

/// Runs from half to one and a half of the mean.
std::vector<std::int64_t> unequal_counts() {
  const std::int64_t mean = kTokens * kTopk / kExperts;
  std::vector<std::int64_t> counts;
  for (std::int64_t e = 0; e < kExperts / 2; ++e) {
    const std::int64_t difference = mean * e / kExperts;
    counts.insert(counts.end(), {mean - difference, mean + difference});
  }
  return counts;
}

void product(benchmark::State& state, bool is_grouped) {
  at::set_num_threads(1);
  const auto weight = is_grouped ? weight_of({kExperts, kInner, kHidden}) : weight_of({kInner, kHidden});
  const auto counts = unequal_counts();
  const at::Tensor rows = at::randn({kTokens * kTopk, kHidden}).requires_grad_();
  const at::Tensor grad = at::randn({kTokens * kTopk, kInner});
  for ([[maybe_unused]] auto iteration : state) {
    const at::Tensor output =
        is_grouped ? grouped_linear(rows, counts, weight, nullptr) : linear(rows, weight, nullptr);
    torch::autograd::backward({output}, {grad});
    rows.mutable_grad().reset();
  }
}
BENCHMARK_CAPTURE(product, grouped, true)->UseRealTime()->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(product, dense, false)->UseRealTime()->Iterations(10)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pharos::nn
