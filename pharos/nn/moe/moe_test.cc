// The whole block: router, dispatcher, experts and shared experts.
#include "pharos/nn/moe/moe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"

namespace pharos::nn {
namespace {

using config::FlexBackend;
using config::TokenDispatcher;

constexpr std::int64_t kExperts = 4, kTopk = 2, kHidden = 6, kWidth = 4, kSharedWidth = 8, kBatch = 2, kTokens = 10;

struct Weights {
  at::Tensor router, fc1, fc2, shared_fc1, shared_fc2, shared_gate;
};

Weights random_weights() {
  return {at::randn({kExperts, kHidden}),
          0.4 * at::randn({kExperts, 2 * kWidth, kHidden}),
          0.4 * at::randn({kExperts, kHidden, kWidth}),
          0.4 * at::randn({2 * kSharedWidth, kHidden}),
          0.4 * at::randn({kHidden, kSharedWidth}),
          at::randn({1, kHidden})};
}

tensor::Parameter parameter_of(const at::Tensor& values) {
  tensor::Parameter parameter;
  parameter.data = values.detach().clone().requires_grad_();
  parameter.main_grad = at::zeros(values.sizes());
  return parameter;
}

/// This rank's part of a matrix whose axis `axis` holds `blocks` blocks that the ranks of `parallel` divide.
at::Tensor part_of(const at::Tensor& whole, std::int64_t axis, std::int64_t blocks, const TensorParallel& parallel) {
  std::vector<at::Tensor> parts;
  for (const auto& block : whole.chunk(blocks, axis)) {
    parts.push_back(block.chunk(parallel.size(), axis)[static_cast<std::size_t>(parallel.rank())]);
  }
  return at::cat(parts, axis);
}

/// Experts divided over the ranks that divide the shared experts.
Moe make_moe(const Weights& weights, const TensorParallel& parallel,
             TokenDispatcher type = TokenDispatcher::kAllToAll) {
  Moe moe;
  moe.router.weight = parameter_of(weights.router);
  moe.router.options.num_experts = kExperts;
  moe.router.options.topk = kTopk;
  moe.router.parallel = parallel;
  moe.experts.fc1 = parameter_of(part_of(weights.fc1, 0, 1, parallel));
  moe.experts.fc2 = parameter_of(part_of(weights.fc2, 0, 1, parallel));
  moe.shared_experts.emplace();
  moe.shared_experts->activation = config::Activation::kSilu;
  moe.shared_experts->gated = true;
  moe.shared_experts->fc1.weight = parameter_of(part_of(weights.shared_fc1, 0, 2, parallel));
  moe.shared_experts->fc1.parallel = parallel;
  moe.shared_experts->fc2.weight = parameter_of(part_of(weights.shared_fc2, 1, 1, parallel));
  moe.shared_experts->fc2.parallel = parallel;
  moe.shared_expert_gate.emplace();
  moe.shared_expert_gate->weight = parameter_of(weights.shared_gate);
  moe.dispatcher =
      make_dispatcher(type, FlexBackend::kNative, {kExperts, kTopk}, {parallel.group, nullptr, parallel.group});
  moe.load = std::make_unique<RouterLoad>();
  return moe;
}

struct Result {
  at::Tensor output, input_grad, router, fc1, fc2, shared_fc1, shared_fc2, shared_gate;
  std::vector<at::Tensor> all() const {
    return {output, input_grad, router, fc1, fc2, shared_fc1, shared_fc2, shared_gate};
  }
};

Result run(const Moe& moe, const at::Tensor& hidden, const at::Tensor& output_grad) {
  const at::Tensor input = hidden.detach().clone().requires_grad_();
  const at::Tensor output = moe.forward(input, {});
  torch::autograd::backward({output}, {output_grad});
  return {output.detach(),
          input.grad(),
          moe.router.weight.main_grad,
          moe.experts.fc1.main_grad,
          moe.experts.fc2.main_grad,
          moe.shared_experts->fc1.weight.main_grad,
          moe.shared_experts->fc2.weight.main_grad,
          moe.shared_expert_gate->weight.main_grad};
}

// Σ over the two likeliest experts of softmax(their logits) · expert(x), and sigmoid(gate · x) · shared(x).
at::Tensor expected_output(const Weights& weights, const at::Tensor& hidden) {
  const auto block = [&](const at::Tensor& fc1, const at::Tensor& fc2) {
    return at::matmul(swiglu(at::matmul(hidden, fc1.t())), fc2.t());
  };
  const auto [logits, choices] = at::matmul(hidden, weights.router.t()).topk(kTopk);
  const auto probabilities = logits.softmax(-1);
  at::Tensor output =
      at::sigmoid(at::matmul(hidden, weights.shared_gate.t())) * block(weights.shared_fc1, weights.shared_fc2);
  for (std::int64_t e = 0; e < kExperts; ++e) {
    output = output + block(weights.fc1[e], weights.fc2[e]) * (probabilities * choices.eq(e)).sum(-1, true);
  }
  return output;
}

TEST(Moe, IsASumOfExperts) {
  at::manual_seed(21);
  const Weights weights = random_weights();
  const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden}), output_grad = at::randn(hidden.sizes());
  Weights leaves = weights;
  std::vector<at::Tensor> inputs{hidden.clone().requires_grad_()};
  for (auto* weight :
       {&leaves.router, &leaves.fc1, &leaves.fc2, &leaves.shared_fc1, &leaves.shared_fc2, &leaves.shared_gate}) {
    inputs.push_back(*weight = weight->clone().requires_grad_());
  }
  const at::Tensor output = expected_output(leaves, inputs[0]);
  auto expected = torch::autograd::grad({output}, inputs, {output_grad});
  expected.insert(expected.begin(), output.detach());
  for (int options = 0; options < 8; ++options) {
    SCOPED_TRACE(options);
    Moe moe = make_moe(weights, {});
    moe.overlaps_shared_experts = (options & 1) != 0;
    moe.recompute_shared_experts = (options & 2) != 0;
    moe.pads_to_capacity = (options & 4) != 0;
    if (moe.pads_to_capacity) moe.router.options.capacity_factor = kExperts;  // nothing is dropped
    const auto actual = run(moe, hidden, output_grad).all();
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-5)) << i << actual[i] - expected[i];
    }
  }
}

TEST(Moe, RecomputingSharedExpertsIsBitwiseTheSame) {
  at::manual_seed(24);
  for (const bool has_gate : {true, false}) {
    for (const bool overlaps : {true, false}) {
      SCOPED_TRACE(std::to_string(has_gate) + std::to_string(overlaps));
      const Weights weights = random_weights();
      const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden}), output_grad = at::randn(hidden.sizes());
      const auto gradient = [&](bool recomputes) {
        Moe moe = make_moe(weights, {});
        if (!has_gate) moe.shared_expert_gate.reset();
        moe.overlaps_shared_experts = overlaps;
        moe.recompute_shared_experts = recomputes;
        const at::Tensor input = hidden.clone().requires_grad_();
        moe.forward(input, {}).backward(output_grad);
        return input.grad();
      };
      EXPECT_TRUE(at::equal(gradient(true), gradient(false)));
    }
  }
}

TEST(Moe, WithoutSharedExperts) {
  at::manual_seed(22);
  Weights weights = random_weights();
  weights.shared_fc2.zero_();
  const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden});
  Moe moe = make_moe(weights, {});
  moe.shared_experts.reset();
  moe.overlaps_shared_experts = true;
  EXPECT_TRUE(at::allclose(moe.forward(hidden, {}), expected_output(weights, hidden), 1e-4, 1e-5));
}

// Tokens divided over the ranks that divide experts and shared experts (sequence parallelism).
TEST(Moe, IsTheSameOverRanks) {
  at::manual_seed(23);
  const Weights weights = random_weights();
  const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden}), output_grad = at::randn(hidden.sizes());
  const Result whole = run(make_moe(weights, {}), hidden, output_grad);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    const TensorParallel parallel{&world.all(), true};
    for (const auto type : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll, TokenDispatcher::kFlex}) {
      for (const bool overlaps : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(type)) + (overlaps ? " overlapped" : ""));
        Moe moe = make_moe(weights, parallel, type);
        moe.overlaps_shared_experts = overlaps;
        const Result result = run(moe, part_of(hidden, 1, 1, parallel), part_of(output_grad, 1, 1, parallel));
        for (const auto& grad : {result.router, result.shared_gate}) {
          world.all().all_reduce(grad, comm::ReduceOp::kSum, {"gradient of a whole weight"}).wait();
        }
        const auto actual = result.all();
        const std::vector<at::Tensor> expected{part_of(whole.output, 1, 1, parallel),
                                               part_of(whole.input_grad, 1, 1, parallel),
                                               whole.router,
                                               part_of(whole.fc1, 0, 1, parallel),
                                               part_of(whole.fc2, 0, 1, parallel),
                                               part_of(whole.shared_fc1, 0, 2, parallel),
                                               part_of(whole.shared_fc2, 1, 1, parallel),
                                               whole.shared_gate};
        for (std::size_t i = 0; i < actual.size(); ++i) {
          EXPECT_TRUE(at::allclose(actual[i], expected[i], 1e-4, 1e-5)) << i << actual[i] - expected[i];
        }
      }
    }
  });
}

}  // namespace
}  // namespace pharos::nn
