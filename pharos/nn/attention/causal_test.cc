// Blocks of causal attention against the equation in float64: sizes around the blocks' edges, layouts, extreme scores.
#include "pharos/nn/attention/causal.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <limits>

namespace pharos::nn::kernels {
namespace {

using Tensors = std::array<at::Tensor, 4>;  // output and the gradients of query, key, value

at::Tensor by_equation(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale) {
  const at::Tensor scores = at::matmul(query, key.transpose(-1, -2)) * scale;
  const at::Tensor hidden = at::ones({query.size(2), key.size(2)}, at::kBool).triu(1);
  return at::matmul(at::softmax(scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1), value);
}

template <typename Attention>
Tensors run(const Attention& attention, const std::array<at::Tensor, 3>& inputs, const at::Tensor& grad, double scale) {
  std::array<at::Tensor, 3> leaves;
  for (std::size_t i = 0; i < 3; ++i) leaves[i] = inputs[i].detach().requires_grad_();
  const at::Tensor output = attention(leaves[0], leaves[1], leaves[2], scale);
  torch::autograd::backward({output}, {grad});
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

Tensors expected(const std::array<at::Tensor, 3>& inputs, const at::Tensor& grad, double scale) {
  return run(by_equation, {inputs[0].to(at::kDouble), inputs[1].to(at::kDouble), inputs[2].to(at::kDouble)},
             grad.to(at::kDouble), scale);
}

/// Relative to the largest number, or to 1 where all are smaller: the first query's weight is 1 whatever its score
/// is.
double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max().clamp_min(1)).item<double>();
}

std::array<at::Tensor, 3> draw(std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t width,
                               std::int64_t value_width) {
  return {at::randn({batch, heads, tokens, width}), at::randn({batch, heads, tokens, width}),
          at::randn({batch, heads, tokens, value_width})};
}

TEST(CausalAttention, EqualsItsEquationAtEverySize) {
  at::manual_seed(3);
  for (const std::int64_t tokens : {1, 2, 31, 63, 64, 65, 130, 255, 256, 257, 321, 515, 700}) {
    for (const auto& [width, value_width] : {std::pair{8, 8}, {48, 32}, {5, 17}, {64, 64}, {1, 1}}) {
      const auto inputs = draw(2, 3, tokens, width, value_width);
      const at::Tensor grad = at::randn({2, 3, tokens, value_width});
      const double scale = 0.7 / std::sqrt(static_cast<double>(width));
      const Tensors found = run(causal_attention, inputs, grad, scale), wanted = expected(inputs, grad, scale);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_LT(distance(found[i], wanted[i]), 2e-6) << tokens << " x " << width << ", " << value_width << ": " << i;
      }
    }
  }
}

TEST(CausalAttention, TakesAnyLayout) {
  at::manual_seed(4);
  const std::int64_t tokens = 70, heads = 3, width = 8;
  // Heads behind tokens, parts of a wider tensor, a last axis with gaps, one head for all.
  const at::Tensor fused = at::randn({2, tokens, heads, 2 * width});
  const std::array<at::Tensor, 3> inputs{fused.narrow(-1, 0, width).transpose(1, 2),
                                         at::randn({2, heads, width, tokens}).transpose(2, 3),
                                         at::randn({2, 1, tokens, width}).expand({2, heads, tokens, width})};
  const at::Tensor grad = at::randn({}).expand({2, heads, tokens, width});
  const Tensors found = run(causal_attention, inputs, grad, 0.4), wanted = expected(inputs, grad, 0.4);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_LT(distance(found[i], wanted[i]), 2e-6) << i;
  EXPECT_TRUE(found[0].transpose(1, 2).is_contiguous());
}

TEST(CausalAttention, KeepsToThoseBefore) {
  at::manual_seed(5);
  const std::int64_t tokens = 300;
  auto inputs = draw(1, 2, tokens, 16, 16);
  const at::Tensor before = causal_attention(inputs[0], inputs[1], inputs[2], 0.25);
  for (const std::int64_t changed : {0, 63, 64, 200, 256, 299}) {
    const at::Tensor key = inputs[1].clone(), value = inputs[2].clone();
    key.select(2, changed).fill_(2);
    value.select(2, changed).fill_(50);
    const at::Tensor after = causal_attention(inputs[0], key, value, 0.25);
    EXPECT_TRUE(at::equal(after.narrow(2, 0, changed), before.narrow(2, 0, changed))) << changed;
    EXPECT_TRUE((after != before).narrow(2, changed, tokens - changed).any(-1).all().item<bool>()) << changed;
  }
}

TEST(CausalAttention, BearsExtremeScores) {
  at::manual_seed(6);
  const auto inputs = draw(1, 2, 400, 8, 8);
  const at::Tensor grad = at::randn({1, 2, 400, 8});
  for (const double scale : {0.0, 1e-6, 300.0, -300.0}) {  // scores to ± 5000: one key takes all
    const Tensors found = run(causal_attention, inputs, grad, scale), wanted = expected(inputs, grad, scale);
    for (std::size_t i = 0; i < found.size(); ++i) {
      // A score of 5000 is rounded by 5e-4 of one, and so far off are its exponentials.
      EXPECT_LT(distance(found[i], wanted[i]), std::abs(scale) > 1 ? 5e-3 : 2e-6) << scale << ": " << i;
    }
  }
}

#ifdef __SANITIZE_THREAD__  // it does not see that OpenMP waits for its threads
constexpr int kThreads = 1;
#else
constexpr int kThreads = 3;
#endif

TEST(CausalAttention, IsTheSameOnAnyNumberOfThreads) {
  at::manual_seed(7);
  const auto inputs = draw(2, 3, 150, 24, 16);
  const at::Tensor grad = at::randn({2, 3, 150, 16});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Tensors one = run(causal_attention, inputs, grad, 0.3);
  at::set_num_threads(kThreads);
  const Tensors several = run(causal_attention, inputs, grad, 0.3);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], several[i])) << i;
}

TEST(CausalAttention, TakesNothing) {
  for (const auto& [batch, tokens] : {std::pair{0, 4}, {2, 0}}) {
    const auto inputs = draw(batch, 2, tokens, 8, 4);
    const Tensors found = run(causal_attention, inputs, at::zeros({batch, 2, tokens, 4}), 1);
    EXPECT_EQ(found[0].sizes(), at::IntArrayRef({batch, 2, tokens, 4}));
    EXPECT_EQ(found[1].sizes(), inputs[0].sizes());
  }
}

TEST(CausalAttention, TakesOnlyWhatFits) {
  const auto inputs = draw(1, 1, 4, 8, 8);
  EXPECT_TRUE(fits_causal_attention(inputs[0], inputs[1], inputs[2]));
  EXPECT_FALSE(fits_causal_attention(inputs[0], inputs[1].to(at::kBFloat16), inputs[2]));
  EXPECT_FALSE(fits_causal_attention(inputs[0].narrow(2, 0, 3), inputs[1], inputs[2]));
  EXPECT_ANY_THROW(causal_attention(inputs[0], inputs[1], at::randn({1, 2, 4, 8}), 1));
}

}  // namespace
}  // namespace pharos::nn::kernels
