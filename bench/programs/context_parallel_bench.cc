// Causal attention of one sequence of 8192 tokens (8 heads of 64, 4 of keys and values), forward and backward, divided
// over local context-parallel ranks of one thread each, against one rank with one thread. Beside the time of a pass:
// what a rank keeps for the backward pass, measured and by the equation of nn/context_parallel/attention.h.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/context_parallel/attention.h"
#include "pharos/tensor/host_allocator.h"

namespace pharos::nn {
namespace {

constexpr std::int64_t kTokens = 8192, kHeads = 8, kKvHeads = 4, kWidth = 64;

AttentionOptions attention() {
  AttentionOptions options;
  options.num_heads = options.num_global_heads = kHeads;
  options.num_kv_heads = kKvHeads;
  options.head_width = kWidth;
  options.name = "bench";
  return options;
}

/// Keys and values as one block, the output, and a number for each query and head; all of float32.
double kept_bytes(std::int64_t ranks) {
  const std::int64_t tokens = kTokens / ranks;
  return 4.0 * static_cast<double>(tokens * (2 * kKvHeads * kWidth + kHeads * kWidth + kHeads));
}

struct Rank {
  explicit Rank(const ContextParallel& parallel)
      : parallel(parallel),
        query(at::randn({1, kHeads, kTokens / parallel.size(), kWidth}).requires_grad_()),
        key(at::randn({1, kKvHeads, kTokens / parallel.size(), kWidth}).requires_grad_()),
        value(at::randn({1, kKvHeads, kTokens / parallel.size(), kWidth}).requires_grad_()),
        grad(at::randn(query.sizes())) {}

  /// Returns the bytes of all ranks that live between the passes beside inputs and gradients.
  std::int64_t pass() {
    for (const at::Tensor& input : {query, key, value}) input.mutable_grad().reset();
    comm::Group& group = *parallel.group;
    group.barrier({"before the pass"});
    const std::int64_t before = tensor::allocated_host_bytes();
    group.barrier({"counted"});
    const at::Tensor output = parallel.is_split()
                                  ? context_parallel_attention(query, key, value, attention(), {}, parallel)
                                  : core_attention(query, key, value, attention(), {});
    group.barrier({"after the forward pass"});
    const std::int64_t kept = tensor::allocated_host_bytes() - before;
    group.barrier({"counted"});
    torch::autograd::backward({output}, {grad});
    return kept;
  }

  ContextParallel parallel;
  at::Tensor query, key, value, grad;
};

void measure(benchmark::State& state, std::int64_t ranks, ContextParallel::Exchange exchange) {
  static const bool installed = (tensor::install_host_allocator(), true);
  benchmark::DoNotOptimize(installed);
  at::set_num_threads(1);
  std::int64_t kept = 0;
  comm::testing::run_ranks(ranks, [&](comm::World& world) {
    Rank rank({&world.all(), exchange});
    if (world.rank() == 0) {
      for ([[maybe_unused]] auto iteration : state) kept = rank.pass();
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) rank.pass();
    }
  });
  constexpr double kMebibyte = 1 << 20;
  state.counters["kept_MiB"] = static_cast<double>(kept) / static_cast<double>(ranks) / kMebibyte;
  if (ranks > 1) state.counters["equation_MiB"] = kept_bytes(ranks) / kMebibyte;
}

void add(const char* name, std::int64_t ranks, ContextParallel::Exchange exchange) {
  benchmark::RegisterBenchmark(name, [=](benchmark::State& state) { measure(state, ranks, exchange); })
      ->UseRealTime()
      ->Iterations(2)
      ->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] const bool kRegistered = [] {
  using Exchange = ContextParallel::Exchange;
  add("one_rank", 1, Exchange::kRing);
  add("ring/2", 2, Exchange::kRing);
  add("all_gather/2", 2, Exchange::kAllGather);
  add("ring/4", 4, Exchange::kRing);
  add("all_gather/4", 4, Exchange::kAllGather);
  return true;
}();

}  // namespace
}  // namespace pharos::nn
