// Experts against the same computation written with autograd, one expert at a time.
#include "pharos/nn/moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/nn/linear.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using config::Activation;

constexpr std::int64_t kHidden = 6, kWidth = 5;
const std::vector<std::int64_t> kCounts{3, 0, 4, 1};

tensor::Parameter parameter_of(const std::vector<std::int64_t>& shape, at::ScalarType type = at::kFloat) {
  tensor::Parameter parameter;
  parameter.data = (0.5 * at::randn(shape)).to(type).requires_grad_();
  parameter.main_grad = at::randn(shape);  // what other microbatches left
  return parameter;
}

Experts experts_of(bool gated, bool has_bias, Activation activation) {
  Experts experts;
  experts.gated = gated;
  experts.activation = activation;
  const std::int64_t num_experts = std::ssize(kCounts), inner = gated ? 2 * kWidth : kWidth;
  experts.fc1 = parameter_of({num_experts, inner, kHidden});
  experts.fc2 = parameter_of({num_experts, kHidden, kWidth});
  if (has_bias) {
    experts.fc1_bias = parameter_of({num_experts, inner});
    experts.fc2_bias = parameter_of({num_experts, kHidden});
  }
  return experts;
}

std::vector<tensor::Parameter*> parameters_of(Experts& experts) {
  std::vector<tensor::Parameter*> parameters{&experts.fc1, &experts.fc2};
  if (experts.fc1_bias) parameters.insert(parameters.end(), {&*experts.fc1_bias, &*experts.fc2_bias});
  return parameters;
}

at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

/// y = p (fc2(activation(fc1(x))) + b2) row by row; `leaves`: fc1, fc2 and their biases.
at::Tensor expected_output(const Experts& experts, const std::vector<at::Tensor>& leaves, const at::Tensor& rows,
                           const at::Tensor& probabilities) {
  std::vector<at::Tensor> outputs;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < std::ssize(kCounts); ++e) {
    const std::int64_t count = kCounts[static_cast<std::size_t>(e)];
    at::Tensor inner = at::mm(rows.narrow(0, first, count), leaves[0][e].t());
    if (leaves.size() > 2) inner = inner + leaves[2][e];
    at::Tensor middle;
    if (experts.gated) {
      at::Tensor gate = inner.narrow(1, 0, kWidth), up = inner.narrow(1, kWidth, kWidth);
      if (experts.clamp) {
        gate = gate.clamp_max(*experts.clamp);
        up = up.clamp(-*experts.clamp, *experts.clamp);
      }
      middle = activate(gate, experts.activation) * (up + experts.up_offset);
    } else {
      middle = activate(inner, experts.activation);
    }
    at::Tensor output = at::mm(middle, leaves[1][e].t());
    if (leaves.size() > 2) output = output + leaves[3][e];
    outputs.push_back(output * probabilities.narrow(0, first, count).unsqueeze(1));
    first += count;
  }
  return at::cat(outputs);
}

struct Case {
  const char* name;
  bool gated, has_bias;
  Activation activation;
  std::optional<double> clamp = {};
  double up_offset = 0;
};

const Case kCases[] = {{"SwiGlu", true, false, Activation::kSilu},
                       {"GatedWithClampAndBias", true, true, Activation::kQuickGelu, 0.7, 1},
                       {"PlainWithBias", false, true, Activation::kGelu}};

struct ExpertsForward : ::testing::TestWithParam<std::tuple<Case, bool, bool>> {};

INSTANTIATE_TEST_SUITE_P(All, ExpertsForward,
                         ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "Recomputed" : "") +
                                  (std::get<2>(info.param) ? "Queued" : "");
                         });

TEST_P(ExpertsForward, IsOneExpertAfterTheOther) {
  at::manual_seed(5);
  const auto& [one, recomputes, queues] = GetParam();
  Experts experts = experts_of(one.gated, one.has_bias, one.activation);
  experts.clamp = one.clamp;
  experts.up_offset = one.up_offset;
  experts.recompute_activation = recomputes;
  std::vector<at::Tensor> leaves, before;
  for (const auto* parameter : parameters_of(experts)) {
    leaves.push_back(leaf_of(parameter->data));
    before.push_back(parameter->main_grad.clone());
  }
  const at::Tensor rows = at::randn({8, kHidden}).requires_grad_(), probabilities = at::rand({8}).requires_grad_();
  const at::Tensor expected_rows = leaf_of(rows), expected_probabilities = leaf_of(probabilities);
  const at::Tensor output_grad = at::randn({8, kHidden});

  const at::Tensor expected = expected_output(experts, leaves, expected_rows, expected_probabilities);
  torch::autograd::backward({expected}, {output_grad});
  WeightGradientQueue queue;
  at::Tensor output;
  {
    std::optional<WeightGradientQueue::Scope> scope;
    if (queues) scope.emplace(queue);
    output = experts.forward(rows, kCounts, probabilities);
  }
  EXPECT_TRUE(at::allclose(output, expected, 1e-5, 1e-6));
  torch::autograd::backward({output}, {output_grad});
  EXPECT_TRUE(at::allclose(rows.grad(), expected_rows.grad(), 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(probabilities.grad(), expected_probabilities.grad(), 1e-5, 1e-6));
  EXPECT_EQ(queue.size() > 0, queues);
  if (queues) {
    EXPECT_TRUE(experts.fc1.main_grad.equal(before[0]));
    queue.run_all();
  }
  const auto parameters = parameters_of(experts);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(parameters[i]->main_grad - before[i], leaves[i].grad(), 1e-5, 1e-5)) << i;
    EXPECT_FALSE(parameters[i]->data.grad().defined());
  }
}

struct CountingKeeper : tensor::ParameterKeeper {
  void before_use(const tensor::Parameter&) override { ++num_uses; }
  void before_gradient(const tensor::Parameter&) override {}
  void after_gradient(const tensor::Parameter&) override { ++num_gradients; }
  int num_uses = 0, num_gradients = 0;
};

TEST(GroupedLinear, ReportsAUseWithoutRows) {
  at::manual_seed(6);
  CountingKeeper keeper;
  auto weight = parameter_of({2, 3, 4}), bias = parameter_of({2, 3});
  weight.keeper = bias.keeper = &keeper;
  const auto before = weight.main_grad.clone();
  const at::Tensor rows = at::empty({0, 4}).requires_grad_();
  const at::Tensor output = grouped_linear(rows, {0, 0}, weight, &bias);
  EXPECT_EQ(output.sizes(), (std::vector<std::int64_t>{0, 3}));
  torch::autograd::backward({output}, {at::empty({0, 3})});
  EXPECT_EQ(keeper.num_gradients, 2);
  EXPECT_TRUE(weight.main_grad.equal(before));
  EXPECT_EQ(rows.grad().numel(), 0);
}

TEST(GroupedLinear, NarrowWeightsGatherGradientsInFloat) {
  at::manual_seed(7);
  auto weight = parameter_of({2, 8, 16}, at::kBFloat16), bias = parameter_of({2, 8}, at::kBFloat16);
  const auto weight_before = weight.main_grad.clone(), bias_before = bias.main_grad.clone();
  const at::Tensor rows = at::randn({6, 16}).to(at::kBFloat16).requires_grad_();
  const at::Tensor output = grouped_linear(rows, {2, 4}, weight, &bias);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  const at::Tensor grad = at::randn({6, 8}).to(at::kBFloat16);
  torch::autograd::backward({output}, {grad});
  EXPECT_EQ(rows.grad().scalar_type(), at::kBFloat16);
  for (std::int64_t e = 0; e < 2; ++e) {
    const auto x = rows.detach().narrow(0, 2 * e, 2 + 2 * e).to(at::kFloat);
    const auto g = grad.narrow(0, 2 * e, 2 + 2 * e).to(at::kFloat);
    const auto w = weight.data.detach()[e].to(at::kFloat);
    EXPECT_TRUE(at::allclose((weight.main_grad - weight_before)[e], at::mm(g.t(), x), 1e-2, 1e-2));
    EXPECT_TRUE(at::allclose((bias.main_grad - bias_before)[e], g.sum(0), 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(rows.grad().narrow(0, 2 * e, 2 + 2 * e).to(at::kFloat), at::mm(g, w), 1e-2, 1e-1));
  }
}

TEST(Experts, NarrowRowsTakeProbabilitiesInFloat) {
  at::manual_seed(8);
  for (const bool recomputes : {false, true}) {
    Experts experts = experts_of(true, true, Activation::kSilu);
    for (auto* parameter : parameters_of(experts)) {
      parameter->data = parameter->data.detach().to(at::kBFloat16).requires_grad_();
    }
    experts.recompute_activation = recomputes;
    const at::Tensor rows = at::randn({8, kHidden}).to(at::kBFloat16).requires_grad_();
    const at::Tensor probabilities = at::rand({8}).requires_grad_();
    const at::Tensor output = experts.forward(rows, kCounts, probabilities);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    torch::autograd::backward({output}, {at::ones_like(output)});
    EXPECT_EQ(rows.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(probabilities.grad().scalar_type(), at::kFloat);
    // Outputs are linear in the probabilities, so their gradients times them are the outputs' sums.
    EXPECT_TRUE(
        at::allclose(probabilities.grad() * probabilities.detach(), output.detach().to(at::kFloat).sum(1), 0.05, 0.05));
  }
}

TEST(Experts, FrozenWeightsTakeNoGradient) {
  at::manual_seed(9);
  Experts experts = experts_of(true, false, Activation::kSilu);
  experts.fc1.main_grad = at::Tensor();
  experts.fc2.main_grad = at::Tensor();
  const at::Tensor rows = at::randn({8, kHidden}).requires_grad_();
  const at::Tensor output = experts.forward(rows, kCounts, at::ones({8}));
  torch::autograd::backward({output}, {at::ones_like(output)});
  EXPECT_GT(rows.grad().abs().sum().item<double>(), 0);
}

#ifdef __SANITIZE_THREAD__  // it does not see that OpenMP waits for its threads
constexpr int kThreads = 1;
#else
constexpr int kThreads = 2;
#endif

// One product a thread: those that have no part in it must neither record a graph nor forget that this is inference.
TEST(Experts, AreTheSameOnSeveralThreads) {
  const int threads = at::get_num_threads();
  const std::vector<std::int64_t> counts{40, 3, 70, 1, 25};
  std::vector<std::vector<at::Tensor>> found;
  for (const int number : {1, kThreads}) {
    at::set_num_threads(number);
    at::manual_seed(10);
    Experts experts;
    experts.gated = true;
    experts.activation = Activation::kSilu;
    experts.fc1 = parameter_of({5, 2 * kWidth, kHidden});
    experts.fc2 = parameter_of({5, kHidden, kWidth});
    const at::Tensor rows = at::randn({139, kHidden}).requires_grad_(), probabilities = at::rand({139});
    const at::Tensor output = experts.forward(rows, counts, probabilities);
    torch::autograd::backward({output}, {at::ones_like(output)});
    found.push_back({output.detach(), rows.grad(), experts.fc1.main_grad, experts.fc2.main_grad});
    const c10::InferenceMode guard;
    EXPECT_TRUE(at::equal(experts.forward(rows, counts, probabilities), output.detach())) << number;
  }
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_TRUE(at::allclose(found[0][i], found[1][i], 1e-6, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace pharos::nn
