// Every dispatcher in every layout against one rank that has all tokens and all experts: outputs, gradients of tokens
// and probabilities, and the slices of the weight gradients.
#include "pharos/nn/moe/dispatcher.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/comm/testing.h"
#include "pharos/lens/test_support.h"
#include "pharos/nn/moe/experts.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using config::FlexBackend;
using config::TokenDispatcher;

constexpr std::int64_t kExperts = 8, kTopk = 3, kHidden = 6, kWidth = 4;
constexpr double kTolerance = 2e-6;  // relative to the largest value: sums of ranks are made in another order
const TokenDispatcher kTypes[] = {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll, TokenDispatcher::kFlex};

/// All ranks' tokens. Column 0 of a token is its number.
struct Problem {
  at::Tensor tokens, output_grad;  ///< [tokens, hidden]
  Routing routing;
  at::Tensor fc1, fc2;  ///< [experts, 2 width, hidden], [experts, hidden, width]
};

/// Nobody chooses expert 3; about a tenth of the choices are dropped.
Problem make_problem(std::int64_t num_tokens) {
  at::manual_seed(11);
  Problem problem;
  problem.tokens = at::randn({num_tokens, kHidden});
  problem.tokens.select(1, 0).copy_(at::arange(num_tokens));
  problem.output_grad = at::randn({num_tokens, kHidden});
  auto experts = at::rand({num_tokens, kExperts - 1}).argsort(std::int64_t{1}).narrow(1, 0, kTopk);
  experts = experts + experts.ge(3).to(at::kLong);
  const auto is_dropped = at::rand({num_tokens, kTopk}).lt(0.1);
  problem.routing.experts = experts.masked_fill(is_dropped, -1);
  problem.routing.probabilities = at::rand({num_tokens, kTopk}).masked_fill(is_dropped, 0);
  problem.fc1 = 0.3 * at::randn({kExperts, 2 * kWidth, kHidden});
  problem.fc2 = 0.3 * at::randn({kExperts, kHidden, kWidth});
  return problem;
}

Experts experts_of(const at::Tensor& fc1, const at::Tensor& fc2) {
  Experts experts;
  experts.fc1.data = fc1.clone().requires_grad_();
  experts.fc2.data = fc2.clone().requires_grad_();
  experts.fc1.main_grad = at::zeros(fc1.sizes());
  experts.fc2.main_grad = at::zeros(fc2.sizes());
  return experts;
}

struct Result {
  at::Tensor output, tokens_grad, probabilities_grad, fc1_grad, fc2_grad;
};

struct Mode {
  const char* name;
  std::optional<std::int64_t> rows_per_expert = {};
  bool recomputes = false;
  bool has_beside = false;
};

/// Rows of an expert lie in the order of their tokens' numbers, wherever they come from.
void expect_order(const ExpertRows& rows) {
  std::int64_t first = 0;
  for (const auto count : rows.counts) {
    const auto numbers = rows.rows.detach().narrow(0, first, count).select(1, 0);
    EXPECT_TRUE(numbers.equal(std::get<0>(numbers.sort()))) << numbers;
    first += count;
  }
  EXPECT_EQ(first, rows.rows.size(0));
  EXPECT_EQ(rows.probabilities.sizes(), at::IntArrayRef(first));
}

Result run(const Dispatcher& dispatcher, const Problem& problem, const Experts& experts, const Mode& mode,
           comm::Group* everybody) {
  const auto tokens = problem.tokens.clone().requires_grad_();
  const auto probabilities = problem.routing.probabilities.clone().requires_grad_();
  const auto block = [&](const std::vector<at::Tensor>& inputs) {
    at::Tensor beside_output;
    int num_calls = 0;
    const auto beside = [&] {
      ++num_calls;
      const auto sum = at::ones({1});
      if (everybody != nullptr) everybody->all_reduce(sum, comm::ReduceOp::kAverage, {"beside"}).wait();
      beside_output = inputs[0] * inputs[0] * sum;
    };
    const auto compute = [&](const ExpertRows& rows) {
      if (!mode.rows_per_expert) expect_order(rows);
      return experts.forward(rows.rows, rows.counts, rows.probabilities);
    };
    const auto output =
        dispatcher.run(inputs[0], {problem.routing.experts, inputs[1], std::nullopt}, mode.rows_per_expert, compute,
                       mode.has_beside ? std::function<void()>(beside) : std::function<void()>());
    EXPECT_EQ(num_calls, mode.has_beside ? 1 : 0);
    return mode.has_beside ? output + beside_output : output;
  };
  const auto output = mode.recomputes ? recompute(block, {tokens, probabilities}) : block({tokens, probabilities});
  torch::autograd::backward({output}, {problem.output_grad});
  return {output.detach(), tokens.grad(), probabilities.grad(), experts.fc1.main_grad, experts.fc2.main_grad};
}

Problem part_of(const Problem& whole, std::int64_t first, std::int64_t count) {
  Problem part = whole;
  for (auto* tensor : {&part.tokens, &part.output_grad, &part.routing.experts, &part.routing.probabilities}) {
    *tensor = tensor->narrow(0, first, count);
  }
  return part;
}

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  EXPECT_LE((actual - expected).abs().max().item<double>(), kTolerance * scale) << what;
}

struct Layout {
  const char* name;
  std::int64_t expert, tensor;
  std::vector<std::int64_t> num_tokens;  ///< of each rank
};

const Layout kLayouts[] = {{"Expert2", 2, 1, {9, 9}},
                           {"Expert2Uneven", 2, 1, {0, 13}},
                           {"Expert4", 4, 1, {5, 5, 5, 5}},
                           {"Tensor2", 1, 2, {9, 9}},
                           {"Tensor2Uneven", 1, 2, {11, 0}},
                           {"Expert2Tensor2", 2, 2, {6, 6, 6, 6}},
                           {"Expert2Tensor2Uneven", 2, 2, {3, 0, 8, 1}}};

struct Dispatchers : ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, Dispatchers, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

ExpertParallel parallel_of(comm::World& world, const Layout& layout) {
  std::vector<std::int64_t> expert, tensor;
  const std::int64_t expert_rank = world.rank() / layout.tensor, tensor_rank = world.rank() % layout.tensor;
  for (std::int64_t i = 0; i < layout.expert; ++i) expert.push_back(i * layout.tensor + tensor_rank);
  for (std::int64_t i = 0; i < layout.tensor; ++i) tensor.push_back(expert_rank * layout.tensor + i);
  ExpertParallel parallel;
  if (layout.expert > 1) parallel.expert = &world.group("ep", expert);
  if (layout.tensor > 1) parallel.expert_tensor = &world.group("etp", tensor);
  parallel.both = &world.all();
  return parallel;
}

/// This rank's part of a tensor over all experts, whose axis `axis` holds `blocks` blocks that ETP divides.
at::Tensor slice_of(const at::Tensor& whole, std::int64_t axis, std::int64_t blocks, const ExpertParallel& parallel) {
  const std::int64_t num_local = kExperts / parallel.expert_size();
  std::vector<at::Tensor> parts;
  for (const auto& block : whole.narrow(0, parallel.expert_rank() * num_local, num_local).chunk(blocks, axis)) {
    const std::int64_t rank = parallel.expert_tensor == nullptr ? 0 : parallel.expert_tensor->rank();
    parts.push_back(block.chunk(parallel.tensor_size(), axis)[static_cast<std::size_t>(rank)]);
  }
  return at::cat(parts, axis);
}

TEST_P(Dispatchers, GiveWhatOneRankGives) {
  const Layout& layout = GetParam();
  const auto& counts = layout.num_tokens;
  const Problem whole = make_problem(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  const bool is_even = std::all_of(counts.begin(), counts.end(), [&](auto count) { return count == counts[0]; });
  std::vector<Mode> modes{{"plain"},
                          {.name = "recomputed", .recomputes = true, .has_beside = true},
                          {.name = "beside", .has_beside = true}};
  if (is_even) modes.push_back({.name = "padded", .rows_per_expert = counts[0]});
  const auto one_rank = make_dispatcher(TokenDispatcher::kAllToAll, FlexBackend::kNative, {kExperts, kTopk}, {});
  comm::testing::run_ranks(layout.expert * layout.tensor, [&](comm::World& world) {
    const auto parallel = parallel_of(world, layout);
    const auto place = counts.begin() + world.rank();
    const std::int64_t first = std::accumulate(counts.begin(), place, std::int64_t{0});
    for (const Mode& mode : modes) {
      const auto expected =
          run(*one_rank, whole, experts_of(whole.fc1, whole.fc2), {mode.name, {}, false, mode.has_beside}, nullptr);
      for (const auto type : kTypes) {
        SCOPED_TRACE(std::string(mode.name) + ", dispatcher " + std::to_string(static_cast<int>(type)));
        const auto dispatcher = make_dispatcher(type, FlexBackend::kNative, {kExperts, kTopk}, parallel);
        const auto experts = experts_of(slice_of(whole.fc1, 1, 2, parallel), slice_of(whole.fc2, 2, 1, parallel));
        const auto actual = run(*dispatcher, part_of(whole, first, *place), experts, mode, &world.all());
        expect_near(actual.output, expected.output.narrow(0, first, *place), "output");
        expect_near(actual.tokens_grad, expected.tokens_grad.narrow(0, first, *place), "gradient of tokens");
        expect_near(actual.probabilities_grad, expected.probabilities_grad.narrow(0, first, *place),
                    "gradient of probabilities");
        expect_near(actual.fc1_grad, slice_of(expected.fc1_grad, 1, 2, parallel), "gradient of fc1");
        expect_near(actual.fc2_grad, slice_of(expected.fc2_grad, 2, 1, parallel), "gradient of fc2");
      }
    }
  });
}

TEST(Dispatcher, NarrowTokensWithProbabilitiesInFloat) {
  const Problem whole = make_problem(12);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    ExpertParallel parallel{&world.all(), nullptr, &world.all()};
    for (const auto type : kTypes) {
      const auto dispatcher = make_dispatcher(type, FlexBackend::kNative, {kExperts, kTopk}, parallel);
      const auto tokens = whole.tokens.narrow(0, 6 * world.rank(), 6).to(at::kBFloat16).requires_grad_();
      Routing routing = part_of(whole, 6 * world.rank(), 6).routing;
      routing.probabilities = routing.probabilities.clone().requires_grad_();
      // Each expert returns its rows times their probabilities: y = x Σ p.
      const auto output = dispatcher->run(tokens, routing, std::nullopt,
                                          [](const ExpertRows& rows) {
                                            EXPECT_EQ(rows.probabilities.scalar_type(), at::kFloat);
                                            return (rows.rows * rows.probabilities.unsqueeze(1)).to(at::kBFloat16);
                                          },
                                          {});
      torch::autograd::backward({output}, {at::ones_like(output)});
      const auto wide = tokens.detach().to(at::kFloat);
      EXPECT_TRUE(
          at::allclose(output.detach().to(at::kFloat), wide * routing.probabilities.detach().sum(1, true), 0.02, 0.02));
      const auto is_there = routing.experts.ge(0).to(at::kFloat);
      EXPECT_TRUE(at::allclose(routing.probabilities.grad(), is_there * wide.sum(1, true), 0.02, 0.05));
    }
  });
}

TEST(Dispatcher, NeedsNoGradients) {
  const Problem whole = make_problem(12);
  const at::NoGradGuard no_grad;
  const auto dispatcher = make_dispatcher(TokenDispatcher::kAllGather, FlexBackend::kNative, {kExperts, kTopk}, {});
  const auto output = dispatcher->run(
      whole.tokens, whole.routing, std::nullopt, [](const ExpertRows& rows) { return rows.rows; },
      [] { EXPECT_FALSE(at::GradMode::is_enabled()); });
  EXPECT_FALSE(output.requires_grad());
  const auto num_choices = whole.routing.experts.ge(0).sum(1, true).to(at::kFloat);
  EXPECT_TRUE(at::allclose(output, whole.tokens * num_choices));
}

TEST(Dispatcher, LeavesSpansInBothPasses) {
  if (!lens::kIsLensBuilt) return;
  lens::MemoryTelemetry memory(lens::group_bit(lens::Group::kLayer));
  const Problem whole = make_problem(5);
  const auto dispatcher = make_dispatcher(TokenDispatcher::kAllToAll, FlexBackend::kNative, {kExperts, kTopk}, {});
  run(*dispatcher, whole, experts_of(whole.fc1, whole.fc2), {"plain"}, nullptr);
  std::vector<std::string> names;
  for (const auto& span : memory.spans()) names.push_back(span.name);
  EXPECT_THAT(names, ::testing::ElementsAre("megatron.moe.dispatch", "megatron.moe.combine", "megatron.moe.dispatch",
                                            "megatron.moe.combine"));
}

TEST(Dispatcher, SaysWhichBackendsItLacks) {
  EXPECT_NE(make_dispatcher(TokenDispatcher::kFlex, FlexBackend::kNative, {kExperts, kTopk}, {}), nullptr);
  for (const auto backend : {FlexBackend::kDeepEp, FlexBackend::kHybridEp, FlexBackend::kNcclEp}) {
    const auto make = [&] { make_dispatcher(TokenDispatcher::kFlex, backend, {kExperts, kTopk}, {}); };
    EXPECT_THAT(make, ::testing::ThrowsMessage<base::UserError>(::testing::HasSubstr("native")));
    EXPECT_NE(make_dispatcher(TokenDispatcher::kAllToAll, backend, {kExperts, kTopk}, {}), nullptr);
  }
}

}  // namespace
}  // namespace pharos::nn
