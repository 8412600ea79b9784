// Layers divided over ranks against the same layer on one rank: outputs, input gradients and weight gradients are its
// slices. Tolerances are relative to the largest value: sums over ranks are taken in another order than sums within a
// product, which costs a few units of float32's last place (6e-8), more where summands cancel.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/embedding.h"
#include "pharos/nn/loss.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/parallel/linear.h"

namespace pharos::nn {
namespace {

constexpr double kTolerance = 2e-6;

struct Layout {
  std::int64_t ranks;
  bool sequence;
  std::int64_t batch;
};

struct ParallelLayers : ::testing::TestWithParam<Layout> {
  void SetUp() override { at::manual_seed(7); }
  /// Runs `body` with every rank's place in the tensor-parallel group.
  void on_ranks(const std::function<void(const TensorParallel&)>& body) const {
    comm::testing::run_ranks(GetParam().ranks, [&](comm::World& world) { body({&world.all(), GetParam().sequence}); });
  }
  std::int64_t batch() const { return GetParam().batch; }
};

INSTANTIATE_TEST_SUITE_P(Layouts, ParallelLayers,
                         ::testing::Values(Layout{1, false, 2}, Layout{1, true, 2}, Layout{2, false, 1},
                                           Layout{2, true, 1}, Layout{2, true, 2}, Layout{4, false, 2},
                                           Layout{4, true, 3}),
                         [](const auto& info) {
                           const Layout& layout = info.param;
                           return "Ranks" + std::to_string(layout.ranks) + (layout.sequence ? "Sequence" : "") +
                                  "Batch" + std::to_string(layout.batch);
                         });

tensor::Parameter parameter_of(const at::Tensor& values) {
  tensor::Parameter parameter;
  parameter.data = values.detach().clone().requires_grad_();
  parameter.main_grad = at::zeros(values.sizes());
  return parameter;
}

at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

/// Part of `tensor` along `axis` that belongs to this rank.
at::Tensor part_of(const at::Tensor& tensor, std::int64_t axis, const TensorParallel& parallel) {
  const std::int64_t length = tensor.size(axis) / parallel.size();
  return tensor.detach().narrow(axis, parallel.rank() * length, length);
}

/// Part of hidden states that belongs to this rank: all tokens, or some.
at::Tensor tokens_of(const at::Tensor& hidden, const TensorParallel& parallel) {
  return parallel.splits_tokens() ? part_of(hidden, 1, parallel) : hidden.detach();
}

void backward(const at::Tensor& output, const at::Tensor& grad) { torch::autograd::backward({output}, {grad}); }

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// Sums over the ranks what each of them sees a part of.
at::Tensor summed(const at::Tensor& grad, const TensorParallel& parallel) {
  const at::Tensor sum = grad.clone();
  parallel.group->all_reduce(sum, comm::ReduceOp::kSum, {"test"}).wait();
  return sum;
}

// Rank r: rows r of W and b, columns r of y; dX is whole.
TEST_P(ParallelLayers, ColumnLinear) {
  const at::Tensor weight = at::randn({12, 6}), bias = at::randn({12}), x = at::randn({batch(), 8, 6}),
                   grad = at::randn({batch(), 8, 12});
  Linear whole{parameter_of(weight), parameter_of(bias)};
  const at::Tensor input = leaf_of(x), output = whole.forward(input);
  backward(output, grad);
  for (const bool queued : {false, true}) {
    on_ranks([&](const TensorParallel& parallel) {
      ColumnLinear layer{parameter_of(part_of(weight, 0, parallel)), parameter_of(part_of(bias, 0, parallel)),
                         parallel};
      const at::Tensor own_input = leaf_of(tokens_of(x, parallel));
      WeightGradientQueue queue;
      std::optional<WeightGradientQueue::Scope> scope;
      if (queued) scope.emplace(queue);
      const at::Tensor own_output = layer.forward(own_input);
      scope.reset();
      EXPECT_LT(distance(own_output, part_of(output, 2, parallel)), kTolerance);
      backward(own_output, part_of(grad, 2, parallel));
      EXPECT_EQ(layer.weight.main_grad.abs().max().item<float>() > 0, !queued);
      queue.run_all();
      EXPECT_LT(distance(own_input.grad(), tokens_of(input.grad(), parallel)), kTolerance);
      EXPECT_LT(distance(layer.weight.main_grad, part_of(whole.weight.main_grad, 0, parallel)), kTolerance);
      EXPECT_LT(distance(layer.bias->main_grad, part_of(whole.bias->main_grad, 0, parallel)), kTolerance);
    });
  }
}

// Rank r: columns r of W and of x; y is whole and the bias is added once.
TEST_P(ParallelLayers, RowLinear) {
  const at::Tensor weight = at::randn({6, 12}), bias = at::randn({6}), x = at::randn({batch(), 8, 12}),
                   grad = at::randn({batch(), 8, 6});
  Linear whole{parameter_of(weight), parameter_of(bias)};
  const at::Tensor input = leaf_of(x), output = whole.forward(input);
  backward(output, grad);
  for (const bool queued : {false, true}) {
    on_ranks([&](const TensorParallel& parallel) {
      RowLinear layer{parameter_of(part_of(weight, 1, parallel)), parameter_of(bias), parallel};
      const at::Tensor own_input = leaf_of(part_of(x, 2, parallel));
      WeightGradientQueue queue;
      std::optional<WeightGradientQueue::Scope> scope;
      if (queued) scope.emplace(queue);
      const at::Tensor own_output = layer.forward(own_input);
      scope.reset();
      EXPECT_LT(distance(own_output, tokens_of(output, parallel)), kTolerance);
      backward(own_output, tokens_of(grad, parallel));
      queue.run_all();
      EXPECT_LT(distance(own_input.grad(), part_of(input.grad(), 2, parallel)), kTolerance);
      EXPECT_LT(distance(layer.weight.main_grad, part_of(whole.weight.main_grad, 1, parallel)), kTolerance);
      const at::Tensor& bias_grad = layer.bias->main_grad;
      EXPECT_LT(distance(parallel.splits_tokens() ? summed(bias_grad, parallel) : bias_grad, whole.bias->main_grad),
                kTolerance);
    });
  }
}

// In reduced precision the weight gradient still goes to float32, and a rank's summand is rounded before the sum.
TEST_P(ParallelLayers, ColumnThenRowInBFloat16) {
  const auto narrow = [](const at::Tensor& tensor) { return tensor.to(at::kBFloat16); };
  const at::Tensor up = at::randn({8, 6}), down = at::randn({6, 8}), x = narrow(at::randn({batch(), 8, 6})),
                   grad = narrow(at::randn({batch(), 8, 6}));
  const auto in_bfloat16 = [&](const at::Tensor& values) {
    tensor::Parameter parameter = parameter_of(values);
    parameter.data = narrow(values).requires_grad_();
    return parameter;
  };
  Mlp whole;
  whole.fc1.weight = in_bfloat16(up);
  whole.fc2.weight = in_bfloat16(down);
  const at::Tensor input = leaf_of(x), output = whole.forward(input);
  backward(output, grad);
  on_ranks([&](const TensorParallel& parallel) {
    Mlp mlp;
    mlp.fc1 = {in_bfloat16(part_of(up, 0, parallel)), std::nullopt, parallel};
    mlp.fc2 = {in_bfloat16(part_of(down, 1, parallel)), std::nullopt, parallel};
    const at::Tensor own_input = leaf_of(tokens_of(x, parallel)), own_output = mlp.forward(own_input);
    EXPECT_EQ(own_output.scalar_type(), at::kBFloat16);
    EXPECT_LT(distance(own_output, tokens_of(output, parallel)), 0.03);
    backward(own_output, tokens_of(grad, parallel));
    EXPECT_LT(distance(own_input.grad(), tokens_of(input.grad(), parallel)), 0.03);
    EXPECT_LT(distance(mlp.fc1.weight.main_grad, part_of(whole.fc1.weight.main_grad, 0, parallel)), 0.03);
    EXPECT_LT(distance(mlp.fc2.weight.main_grad, part_of(whole.fc2.weight.main_grad, 1, parallel)), 0.03);
  });
}

// Every row lies on one rank, so that sums over ranks are exact; learned positions and dropout know their token.
TEST_P(ParallelLayers, Embedding) {
  const at::Tensor words = at::randn({20, 6}), positions = at::randn({8, 6}), grad = at::randn({batch(), 8, 6});
  const at::Tensor tokens = at::randint(0, 20, {batch(), 8}, at::kLong);
  ForwardContext context;
  context.positions = at::arange(8, at::kLong);
  context.training = true;
  context.first_sample = 3;
  Embedding whole{parameter_of(words), parameter_of(positions), 0.3, 1.7, {}};
  const at::Tensor output = whole.forward(tokens, context);
  backward(output, grad);
  on_ranks([&](const TensorParallel& parallel) {
    Embedding embedding{parameter_of(part_of(words, 0, parallel)), parameter_of(positions), 0.3, 1.7, parallel};
    const at::Tensor own_output = embedding.forward(tokens, context);
    EXPECT_TRUE(at::equal(own_output, tokens_of(output, parallel)));
    backward(own_output, tokens_of(grad, parallel));
    EXPECT_TRUE(at::equal(embedding.words.main_grad, part_of(whole.words.main_grad, 0, parallel)));
    const at::Tensor& own = embedding.positions->main_grad;
    EXPECT_LT(distance(parallel.splits_tokens() ? summed(own, parallel) : own, whole.positions->main_grad), kTolerance);
  });
}

// 16 columns; with 13 or 3 of them in the vocabulary some ranks of 4 hold some padding, or nothing else.
TEST_P(ParallelLayers, CrossEntropy) {
  for (const std::int64_t vocab_size : {16, 13, 3}) {
    for (const double scale : {1.0, 100.0}) {  // exp(100) does not fit float32
      const at::Tensor logits = scale * at::randn({batch(), 5, 16}), grad = at::rand({batch(), 5});
      const at::Tensor labels = at::randint(0, vocab_size, {batch(), 5}, at::kLong);
      const at::Tensor x = leaf_of(logits);
      const at::Tensor losses = at::cross_entropy_loss(x.narrow(-1, 0, vocab_size).reshape({-1, vocab_size}),
                                                       labels.reshape(-1), {}, at::Reduction::None)
                                    .view(labels.sizes());
      backward(losses, grad);
      on_ranks([&](const TensorParallel& parallel) {
        const at::Tensor own = leaf_of(part_of(logits, 2, parallel));
        const at::Tensor own_losses = cross_entropy(own.clone(), labels, vocab_size, parallel);
        EXPECT_LT(distance(own_losses, losses), kTolerance) << vocab_size << " of 16";
        backward(own_losses, grad);
        EXPECT_LT((own.grad() - part_of(x.grad(), 2, parallel)).abs().max().item<double>(), kTolerance);
        const std::int64_t columns = 16 / parallel.size(), first = parallel.rank() * columns;
        const std::int64_t real = std::clamp<std::int64_t>(vocab_size - first, 0, columns);
        EXPECT_EQ(own.grad().narrow(-1, real, columns - real).abs().sum().item<float>(), 0);
      });
    }
  }
}

// Float32 logits are overwritten, not copied: neither pass may allocate another tensor of their size.
TEST(ParallelCrossEntropy, OverwritesItsLogits) {
  comm::testing::run_ranks(2, [&](comm::World& world) {
    const at::Tensor input = at::rand({1, 4, 8}).requires_grad_();
    const at::Tensor logits = input * 1, before = logits.detach().clone();
    const at::Tensor losses = cross_entropy(logits, at::ones({1, 4}, at::kLong), 16, {&world.all(), false});
    EXPECT_FALSE(at::equal(logits.detach(), before));
    at::Tensor logits_grad;
    logits.register_hook([&](const at::Tensor& grad) { logits_grad = grad; });
    backward(losses, at::ones({1, 4}));
    EXPECT_EQ(logits_grad.const_data_ptr(), logits.const_data_ptr());
  });
}

// The mask of a rank's tokens is the slice of the mask of all tokens, in the backward pass too.
TEST_P(ParallelLayers, DropoutOfTokens) {
  ForwardContext context;
  context.training = true;
  context.seed = 3;
  context.first_sample = 5;
  const at::Tensor x = at::randn({batch(), 8, 7}), whole = dropout(x, 0.4, "x", context);
  on_ranks([&](const TensorParallel& parallel) {
    const at::Tensor own = leaf_of(tokens_of(x, parallel));
    const at::Tensor output = dropout_of_tokens(own, 0.4, "x", context, parallel);
    EXPECT_TRUE(at::equal(output, tokens_of(whole, parallel)));
    backward(output, at::ones_like(output));
    EXPECT_TRUE(at::equal(own.grad() * own, output));
  });
}

TEST(ParallelTokens, ThatNoRankHoldsAreRefused) {
  comm::testing::run_ranks(2, [](comm::World& world) {
    const TensorParallel parallel{&world.all(), false};
    const tensor::Parameter table = parameter_of(at::randn({4, 4}));  // 8 rows on two ranks
    EXPECT_NO_THROW(embed_vocabulary(at::full({1, 2}, 7, at::kLong), table, parallel));
    for (const std::int64_t token : {-1, 8}) {
      EXPECT_ANY_THROW(embed_vocabulary(at::full({1, 2}, token, at::kLong), table, parallel)) << token;
    }
    for (const std::int64_t label : {-1, 7}) {
      EXPECT_ANY_THROW(cross_entropy(at::randn({1, 2, 4}), at::full({1, 2}, label, at::kLong), 7, parallel)) << label;
    }
  });
}

TEST(ParallelTokens, ThatDoNotDivideAreRefused) {
  comm::testing::run_ranks(2, [](comm::World& world) {
    RowLinear layer{parameter_of(at::randn({4, 4})), std::nullopt, {&world.all(), true}};
    EXPECT_THAT(
        [&] {
          layer.forward(at::randn({1, 5, 4}));
        },
        ::testing::ThrowsMessage<std::exception>(::testing::HasSubstr("5 tokens do not divide by 2 ranks")));
  });
}

}  // namespace
}  // namespace pharos::nn
