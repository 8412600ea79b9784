// Attention, embedding and dropout with tokens divided over context-parallel ranks against one rank.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/attention.h"
#include "pharos/nn/context_parallel/attention.h"
#include "pharos/nn/context_parallel/zigzag.h"
#include "pharos/nn/parallel/tensor_parallel.h"

namespace pharos::nn {

void PrintTo(const TokenRange& range, std::ostream* out) { *out << range.first << "+" << range.count; }

namespace {

using Exchange = ContextParallel::Exchange;

auto range_is(std::int64_t first, std::int64_t count) {
  return ::testing::AllOf(::testing::Field(&TokenRange::first, first), ::testing::Field(&TokenRange::count, count));
}

TEST(Zigzag, RanksHoldAnEarlyAndALatePart) {
  EXPECT_THAT(zigzag_ranges(16, 0, 2), ::testing::ElementsAre(range_is(0, 4), range_is(12, 4)));
  EXPECT_THAT(zigzag_ranges(16, 1, 2), ::testing::ElementsAre(range_is(4, 4), range_is(8, 4)));
  EXPECT_THAT(zigzag_ranges(24, 2, 4), ::testing::ElementsAre(range_is(6, 3), range_is(15, 3)));
  EXPECT_THROW(zigzag_ranges(10, 0, 2), std::exception);
  const at::Tensor whole = at::arange(16, at::kLong).reshape({1, 16});
  EXPECT_TRUE(at::equal(zigzag_slice(whole, 1, 1, 2), at::arange(4, 12, at::kLong).unsqueeze(0)));
  EXPECT_TRUE(at::equal(zigzag_slice(whole, 1, 0, 1), whole));
}

// Sequence parallelism cuts the tokens of a rank again: within one run, or over the seam between the two.
TEST(Zigzag, RunsOfSomeOfTheLocalTokens) {
  EXPECT_THAT(zigzag_runs(16, 0, 2, 0, 8), ::testing::ElementsAre(range_is(0, 4), range_is(12, 4)));
  EXPECT_THAT(zigzag_runs(16, 0, 2, 4, 4), ::testing::ElementsAre(range_is(12, 4)));
  EXPECT_THAT(zigzag_runs(24, 1, 2, 4, 4), ::testing::ElementsAre(range_is(10, 2), range_is(12, 2)));
  EXPECT_THAT(zigzag_runs(24, 0, 1, 8, 4), ::testing::ElementsAre(range_is(8, 4)));
}

// Every pair of a query and a key that is no later lies in exactly one half-block, and each step is as much work on one
// rank as on another.
TEST(Zigzag, BlocksCoverTheCausalMaskOnceAndAreBalanced) {
  for (const std::int64_t size : {2, 3, 4, 8}) {
    const std::int64_t tokens = 4 * size, part = 2;
    at::Tensor covered = at::zeros({tokens, tokens}, at::kLong);
    for (std::int64_t rank = 0; rank < size; ++rank) {
      for (std::int64_t source = 0; source < size; ++source) {
        const auto blocks = half_blocks(tokens, rank, source, size, 0);
        EXPECT_EQ(blocks.size(), rank == source ? 3U : 2U);
        for (const HalfBlock& block : blocks)
          covered.narrow(0, block.first_query, part).narrow(1, block.first_key, part).add_(1);
      }
    }
    EXPECT_TRUE(at::equal(covered.tril(), at::ones_like(covered).tril()));
    EXPECT_EQ(covered.triu(part).max().item<std::int64_t>(), 0) << "blocks above the diagonal";
  }
}

TEST(Zigzag, BlocksOutsideOfTheWindowAreLeftOut) {
  // Parts of 4 tokens; rank 0 of 4 holds parts 0 and 7. With a window of 5 a query sees into the part before its own,
  // with a window of 6 no further; token 4 + 5 = 9 is the first of part 2 that would have to see part 0 of a window
  // of 6.
  const auto count = [](std::int64_t rank, std::int64_t source, std::int64_t window) {
    return half_blocks(32, rank, source, 4, window).size();
  };
  EXPECT_EQ(count(0, 0, 0), 3U);
  EXPECT_EQ(count(0, 0, 5), 2U);  // the diagonal ones
  EXPECT_EQ(count(0, 1, 5), 1U);  // part 7 with part 6
  EXPECT_EQ(count(0, 2, 5), 0U);
  EXPECT_EQ(count(0, 2, 6), 1U);  // key 23, the last one of part 5
  EXPECT_EQ(count(0, 2, 1), 0U);
}

struct Case {
  const char* name;
  std::int64_t heads = 4, kv_heads = 4, window = 0;
  bool packed = false;
  double dropout = 0;
  bool fused = true;
  std::int64_t value_width = 8;
  std::optional<double> scale = {}, softcap = {};
  bool sinks = false;
};

const Case kCases[] = {
    {.name = "Causal"},
    {.name = "CausalUnfused", .fused = false},
    {.name = "Grouped", .kv_heads = 2},
    {.name = "GroupedUnfused", .kv_heads = 1, .fused = false},
    {.name = "NarrowWindow", .window = 3},
    {.name = "WideWindow", .kv_heads = 2, .window = 13},
    {.name = "Packed", .kv_heads = 2, .packed = true},
    {.name = "PackedWindow", .window = 7, .packed = true},
    {.name = "Dropout", .kv_heads = 2, .dropout = 0.3},
    {.name = "PackedDropout", .window = 9, .packed = true, .dropout = 0.2},
    {.name = "NarrowValues", .kv_heads = 2, .value_width = 5, .scale = 0.7},
    {.name = "Capped", .kv_heads = 2, .packed = true, .scale = 0.6, .softcap = 1.5},
    {.name = "SinksAndWideValues", .kv_heads = 2, .value_width = 12, .sinks = true},
    {.name = "SinksInAWindow", .window = 5, .dropout = 0.2, .value_width = 5, .softcap = 2.0, .sinks = true},
};

struct ContextAttention : ::testing::TestWithParam<std::tuple<Case, std::int64_t, Exchange>> {};

INSTANTIATE_TEST_SUITE_P(Layouts, ContextAttention,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(2, 3, 4),
                                            ::testing::Values(Exchange::kRing, Exchange::kAllGather)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == Exchange::kRing ? "Ring" : "AllGather");
                         });

at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

// Output and the gradients of queries, keys, values and sinks are the slices of core_attention() over all tokens.
TEST_P(ContextAttention, IsAttentionOfTheWholeSequence) {
  const auto& [one, size, exchange] = GetParam();
  at::manual_seed(11);
  constexpr std::int64_t kBatch = 2, kTokens = 24, kWidth = 8;
  AttentionOptions options;
  options.num_heads = one.heads;
  options.num_kv_heads = one.kv_heads;
  options.head_width = kWidth;
  options.dropout = one.dropout;
  options.window = one.window;
  options.fused = one.fused;
  options.value_width = one.value_width;
  options.scale = one.scale;
  options.softcap = one.softcap;
  options.first_head = 2;  // as on the second rank of two that divide the heads
  options.num_global_heads = 8;
  options.name = "test";
  ForwardContext context;
  context.training = true;
  context.seed = 3;
  context.first_sample = 5;
  if (one.packed) {  // documents that end within a part, at its end, and right behind its first token
    context.segments = at::stack(
        {(at::arange(kTokens, at::kLong) >= 5).to(at::kLong),
         (at::arange(kTokens, at::kLong) >= 7).to(at::kLong) + (at::arange(kTokens, at::kLong) >= 18).to(at::kLong)});
  }
  const at::Tensor query = leaf_of(at::randn({kBatch, one.heads, kTokens, kWidth})),
                   key = leaf_of(at::randn({kBatch, one.kv_heads, kTokens, kWidth})),
                   value = leaf_of(at::randn({kBatch, one.kv_heads, kTokens, one.value_width}));
  const at::Tensor grad = at::randn({kBatch, one.heads, kTokens, one.value_width});
  const at::Tensor sinks = one.sinks ? leaf_of(at::randn({one.heads})) : at::Tensor();
  const at::Tensor whole = core_attention(query, key, value, options, context, sinks);
  torch::autograd::backward({whole}, {grad});
  comm::testing::run_ranks(size, [&](comm::World& world) {
    const ContextParallel parallel{&world.all(), exchange};
    const auto own = [&](const at::Tensor& all) {
      return zigzag_slice(all.detach(), 2, parallel.rank(), parallel.size());
    };
    const at::Tensor q = leaf_of(own(query)), k = leaf_of(own(key)), v = leaf_of(own(value));
    const at::Tensor s = one.sinks ? leaf_of(sinks) : at::Tensor();
    const at::Tensor output = context_parallel_attention(q, k, v, options, context, parallel, s);
    EXPECT_TRUE(output.transpose(1, 2).is_contiguous());
    torch::autograd::backward({output}, {own(grad)});
    EXPECT_LT(distance(output, own(whole)), 3e-6);
    EXPECT_LT(distance(q.grad(), own(query.grad())), 5e-6);
    EXPECT_LT(distance(k.grad(), own(key.grad())), 5e-6);
    EXPECT_LT(distance(v.grad(), own(value.grad())), 5e-6);
    if (one.sinks) {  // of each rank's queries
      const at::Tensor sum = s.grad().clone();
      parallel.group->all_reduce(sum, comm::ReduceOp::kSum, {"test"}).wait();
      EXPECT_LT(distance(sum, sinks.grad()), 5e-6);
    }
  });
}

// Sums are made in float32, the result of a half-block is rounded once: what bfloat16 costs is of the size that it
// costs on one rank.
TEST(ContextAttentionInBFloat16, IsAsExactAsOnOneRank) {
  at::manual_seed(12);
  AttentionOptions options;
  options.num_heads = options.num_kv_heads = options.num_global_heads = 2;
  options.head_width = 16;
  const auto draw = [] { return at::randn({1, 2, 64, 16}).to(at::kBFloat16); };
  const at::Tensor query = draw(), key = draw(), value = draw(), grad = draw();
  const auto run = [&](const auto& core, const auto& own) {
    const at::Tensor q = leaf_of(own(query)), k = leaf_of(own(key)), v = leaf_of(own(value));
    const at::Tensor output = core(q, k, v);
    torch::autograd::backward({output}, {own(grad).to(output.scalar_type())});
    return std::vector<at::Tensor>{output.detach(), q.grad(), k.grad(), v.grad()};
  };
  const auto on_one = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return core_attention(q, k, v, options, {});
  };
  const auto exact = run(on_one, [](const at::Tensor& t) { return t.to(at::kFloat); });
  const auto whole = run(on_one, [](const at::Tensor& t) { return t; });
  for (const bool fused : {true, false}) {
    options.fused = fused;
    comm::testing::run_ranks(4, [&](comm::World& world) {
      const ContextParallel parallel{&world.all()};
      const auto own = [&](const at::Tensor& all) { return zigzag_slice(all, 2, world.rank(), 4); };
      const auto parts =
          run([&](const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v) { return context_parallel_attention(q, k, v, options, {}, parallel); },
              own);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        EXPECT_EQ(parts[i].scalar_type(), at::kBFloat16);
        const auto error = [&](const at::Tensor& found) {
          return (found.to(at::kFloat) - own(exact[i])).norm().template item<double>();
        };
        EXPECT_LT(error(parts[i]), 3 * error(own(whole[i]))) << i;
      }
    });
  }
}

// Masks of hidden states follow from the place in the whole sequence, also where tensor-parallel ranks divide the
// tokens of a context-parallel rank once more (two runs on one of three ranks).
TEST(ContextDropout, DropsWhatOneRankDrops) {
  ForwardContext context;
  context.training = true;
  context.seed = 4;
  context.first_sample = 3;
  const at::Tensor ones = at::ones({2, 24, 5});
  const at::Tensor whole = dropout(ones, 0.4, "x", context);
  comm::testing::run_ranks(6, [&](comm::World& world) {
    const comm::Mesh mesh(6, {.tensor = 3, .context = 2});
    const TensorParallel tensor{&world.group(mesh, {comm::MeshDim::kTensor}), true};
    const ContextParallel parallel{&world.group(mesh, {comm::MeshDim::kContext})};
    const auto own = [&](const at::Tensor& all) {
      return zigzag_slice(all, 1, parallel.rank(), 2).narrow(1, 4 * tensor.rank(), 4);
    };
    const at::Tensor input = leaf_of(own(ones));
    const at::Tensor output = dropout_of_tokens(input, 0.4, "x", context, tensor, parallel);
    EXPECT_TRUE(at::equal(output, own(whole)));
    torch::autograd::backward({output}, {at::ones_like(output)});
    EXPECT_TRUE(at::equal(input.grad(), own(whole)));
  });
}

}  // namespace
}  // namespace pharos::nn
