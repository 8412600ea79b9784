// Every layer against the same equation written with ATen operations under autograd.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "pharos/nn/attention.h"
#include "pharos/nn/embedding.h"
#include "pharos/nn/kernels/kernels.h"
#include "pharos/nn/linear.h"
#include "pharos/nn/loss.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/norm.h"
#include "pharos/nn/recompute.h"
#include "pharos/nn/rotary.h"

namespace pharos::nn {
namespace {

tensor::Parameter make_parameter(at::IntArrayRef shape, double scale = 0.3) {
  tensor::Parameter parameter;
  parameter.data = (at::randn(shape) * scale).requires_grad_();
  parameter.main_grad = at::zeros(shape);
  return parameter;
}

at::Tensor leaf(at::IntArrayRef shape) { return at::randn(shape).requires_grad_(); }
at::Tensor leaf_of(const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }

void backward(const at::Tensor& output, const at::Tensor& grad) { torch::autograd::backward({output}, {grad}); }

/// Largest difference relative to the largest value.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

struct NnTest : ::testing::Test {
  void SetUp() override { at::manual_seed(7); }
};

TEST_F(NnTest, LinearAddsItsGradientsToMainGrad) {
  Linear layer{make_parameter({5, 4}), make_parameter({5})};
  layer.weight.main_grad.fill_(1);
  const at::Tensor input = leaf({2, 3, 4}), grad = at::randn({2, 3, 5});
  backward(layer.forward(input), grad);
  const at::Tensor x = leaf_of(input), w = leaf_of(layer.weight.data), b = leaf_of(layer.bias->data);
  backward(at::linear(x, w, b), grad);
  EXPECT_LT(distance(input.grad(), x.grad()), 1e-6);
  EXPECT_LT(distance(layer.weight.main_grad - 1, w.grad()), 1e-6);
  EXPECT_LT(distance(layer.bias->main_grad, b.grad()), 1e-6);
  EXPECT_FALSE(layer.weight.data.grad().defined());
}

TEST_F(NnTest, QueuedWeightGradientIsTheSameAndComesLater) {
  Linear now{make_parameter({5, 4}), make_parameter({5})}, later = now;
  later.weight.main_grad = at::zeros({5, 4});
  later.bias->main_grad = at::zeros({5});
  const at::Tensor input = at::randn({3, 4}), grad = at::randn({3, 5});
  backward(now.forward(input), grad);
  WeightGradientQueue queue;
  at::Tensor output;
  {
    const WeightGradientQueue::Scope scope(queue);
    output = later.forward(input);
  }
  EXPECT_EQ(WeightGradientQueue::current(), nullptr);
  backward(output, grad);
  EXPECT_EQ(queue.size(), 1U);
  EXPECT_EQ(later.weight.main_grad.abs().sum().item<float>(), 0);
  queue.run_all();
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_TRUE(at::equal(later.weight.main_grad, now.weight.main_grad));
  EXPECT_TRUE(at::equal(later.bias->main_grad, now.bias->main_grad));
}

TEST_F(NnTest, BFloat16LinearKeepsFloat32MainGrad) {
  Linear layer{make_parameter({5, 4}), std::nullopt};
  layer.weight.data = layer.weight.data.detach().to(at::kBFloat16).requires_grad_();
  const at::Tensor input = at::randn({3, 4}).to(at::kBFloat16), grad = at::randn({3, 5}).to(at::kBFloat16);
  backward(layer.forward(input), grad);
  EXPECT_EQ(layer.weight.main_grad.scalar_type(), at::kFloat);
  EXPECT_LT(distance(layer.weight.main_grad, at::mm(grad.to(at::kFloat).t(), input.to(at::kFloat))), 0.02);
}

struct NormCase {
  bool is_rms, zero_centered;
  std::int64_t width;
  at::ScalarType type;
  double tolerance;
};

// y = (x - mean) / sqrt(var + eps) * w + b, or y = x / sqrt(mean(x²) + eps) * w.
TEST_F(NnTest, NormsEqualTheirEquations) {
  const NormCase cases[] = {{true, false, 24, at::kFloat, 2e-6},    {true, true, 24, at::kFloat, 2e-6},
                            {true, false, 7, at::kFloat, 2e-6},     {false, false, 24, at::kFloat, 2e-6},
                            {false, true, 24, at::kFloat, 2e-6},    {true, false, 24, at::kBFloat16, 0.02},
                            {false, false, 24, at::kBFloat16, 0.02}};
  for (const NormCase& c : cases) {
    Norm norm;
    norm.is_rms = c.is_rms;
    norm.zero_centered = c.zero_centered;
    norm.weight = make_parameter({c.width});
    norm.weight.data = norm.weight.data.detach().to(c.type).requires_grad_();
    if (!c.is_rms) norm.bias = make_parameter({c.width});
    const at::Tensor input = at::randn({2, 37, c.width}).to(c.type).requires_grad_();
    const at::Tensor grad = at::randn({2, 37, c.width}).to(c.type);
    const at::Tensor output = norm.forward(input);
    EXPECT_EQ(output.scalar_type(), c.type);
    backward(output, grad);
    const at::Tensor x = leaf_of(input.to(at::kDouble)), w = leaf_of(norm.weight.data.to(at::kDouble));
    const at::Tensor factor = c.zero_centered ? w + 1 : w;
    at::Tensor expected;
    if (c.is_rms) {
      expected = x * at::rsqrt(x.square().mean(-1, true) + norm.epsilon) * factor;
    } else {
      const at::Tensor centered = x - x.mean(-1, true);
      expected = centered * at::rsqrt(centered.square().mean(-1, true) + norm.epsilon) * factor +
                 norm.bias->data.to(at::kDouble);
    }
    backward(expected, grad.to(at::kDouble));
    EXPECT_LT(distance(output.to(at::kDouble), expected), c.tolerance);
    EXPECT_LT(distance(input.grad().to(at::kDouble), x.grad()), c.tolerance);
    EXPECT_LT(distance(norm.weight.main_grad.to(at::kDouble), w.grad()), c.tolerance);
    if (norm.bias) {
      EXPECT_LT(distance(norm.bias->main_grad.to(at::kDouble), grad.to(at::kDouble).sum({0, 1})), c.tolerance);
    }
  }
}

TEST_F(NnTest, SwigluAndItsGradient) {
  const at::Tensor input = leaf({3, 5, 16}), grad = at::randn({3, 5, 8});
  backward(swiglu(input), grad);
  const at::Tensor x = leaf_of(input);
  const auto halves = x.chunk(2, -1);
  const at::Tensor expected = at::silu(halves[0]) * halves[1];
  backward(expected, grad);
  EXPECT_LT(distance(swiglu(input), expected), 1e-6);
  EXPECT_LT(distance(input.grad(), x.grad()), 1e-6);
}

TEST_F(NnTest, ActivationsByTheirFormulas) {
  const at::Tensor x = at::linspace(-4, 4, 41, at::kDouble);
  using config::Activation;
  EXPECT_LT(distance(activate(x, Activation::kQuickGelu), x / (1 + (-1.702 * x).exp())), 1e-12);
  EXPECT_LT(distance(activate(x, Activation::kSquaredRelu), x.clamp_min(0).square()), 1e-12);
  EXPECT_LT(distance(activate(x, Activation::kGelu), x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)))), 1e-12);
  EXPECT_LT(distance(activate(x, Activation::kGeluTanh),
                     0.5 * x * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))))),
            1e-12);
}

// Clamped gated unit: act(min(gate, c)) * (clamp(up, -c, c) + offset).
TEST_F(NnTest, ClampedGatedUnit) {
  Mlp mlp{{make_parameter({12, 4}, 3), std::nullopt, {}},
          {make_parameter({4, 6}), std::nullopt, {}},
          config::Activation::kQuickGelu,
          true,
          0.7,
          1};
  const at::Tensor input = at::randn({3, 4});
  const auto halves = at::linear(input, mlp.fc1.weight.data).chunk(2, -1);
  const at::Tensor inner =
      activate(halves[0].clamp_max(0.7), config::Activation::kQuickGelu) * (halves[1].clamp(-0.7, 0.7) + 1);
  EXPECT_LT(distance(mlp.forward(input), at::linear(inner, mlp.fc2.weight.data)), 1e-6);
}

TEST_F(NnTest, RotaryTurnsPairsByTheirAngle) {
  for (const bool interleaved : {false, true}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor frequencies = inverse_frequencies({.width = 8, .base = 100});
      const at::Tensor positions = at::tensor({0, 3, 1, 7, 2, 2, 9, 4}, at::kLong).view({2, 4});
      const RotaryAngles angles = rotary_angles(frequencies, positions, interleaved);
      const at::Tensor input = at::randn({2, 4, 3, 10}).to(type).requires_grad_();
      const at::Tensor output = apply_rotary(input, angles);
      ASSERT_EQ(output.sizes(), at::IntArrayRef({2, 3, 4, 10}));
      // As complex numbers: z · exp(i position frequency); the last two elements pass.
      const at::Tensor wide = input.detach().to(at::kFloat);
      const at::Tensor real =
          interleaved ? wide.narrow(-1, 0, 8).unflatten(-1, {4, 2}).select(-1, 0) : wide.narrow(-1, 0, 4);
      const at::Tensor imaginary =
          interleaved ? wide.narrow(-1, 0, 8).unflatten(-1, {4, 2}).select(-1, 1) : wide.narrow(-1, 4, 4);
      const at::Tensor angle = (positions.to(at::kFloat).unsqueeze(-1) * frequencies).unsqueeze(2);
      const at::Tensor turned = at::complex(real, imaginary) * at::polar(at::ones_like(angle), angle);
      const at::Tensor pairs =
          interleaved ? at::view_as_real(turned).flatten(-2) : at::cat({at::real(turned), at::imag(turned)}, -1);
      const at::Tensor expected = at::cat({pairs, wide.narrow(-1, 8, 2)}, -1).transpose(1, 2);
      const double tolerance = type == at::kFloat ? 1e-6 : 0.01;
      EXPECT_LT(distance(output.to(at::kFloat), expected), tolerance);
      // The backward of a rotation is the inverse rotation: feeding the output back gives the input.
      backward(output, output.detach());
      EXPECT_LT(distance(input.grad().to(at::kFloat), wide), 2 * tolerance);
    }
  }
}

TEST_F(NnTest, RotaryScalings) {
  const at::Tensor plain = inverse_frequencies({.width = 64, .base = 500000});
  const at::Tensor linear =
      inverse_frequencies({.width = 64, .base = 500000, .scaling = RotaryOptions::Scaling::kLinear, .factor = 4});
  EXPECT_LT(distance(linear * 4, plain), 1e-6);
  const at::Tensor llama =
      inverse_frequencies({.width = 64, .base = 500000, .scaling = RotaryOptions::Scaling::kLlama3, .factor = 8});
  const at::Tensor ratio = plain / llama;  // 1 for short wavelengths, the factor for long ones, between otherwise
  EXPECT_FLOAT_EQ(ratio[0].item<float>(), 1);
  EXPECT_FLOAT_EQ(ratio[31].item<float>(), 8);
  EXPECT_TRUE((ratio.diff() > -1e-5).all().item<bool>());
}

/// As transformers 5.24 computes them, but for an ulp that another processor may round elsewhere.
TEST_F(NnTest, Llama3Frequencies) {
  RotaryOptions options{.width = 10, .base = 777, .scaling = RotaryOptions::Scaling::kLlama3, .factor = 5.5};
  options.low_frequency_factor = 1.3;
  options.high_frequency_factor = 3.1;
  options.original_max_positions = 13;
  const at::Tensor expected =
      at::tensor({0x1.100fbcp-1F, 0x1.897f9ap-5F, 0x1.9fd538p-7F, 0x1.b76f58p-9F, 0x1.d0606cp-11F});
  EXPECT_LT((inverse_frequencies(options) / expected - 1).abs().max().item<float>(), 1.5e-7F);
}

struct YarnCase {
  RotaryOptions options;
  std::vector<float> frequencies;
};

// As transformers 5.24 computes them: of DeepSeek-V2 in small, and of settings like GPT-OSS with and without rounding.
TEST_F(NnTest, YarnFrequencies) {
  const auto yarn = [](std::int64_t width, double base, double factor, std::int64_t original, bool rounds) {
    RotaryOptions options{.width = width, .base = base, .scaling = RotaryOptions::Scaling::kYarn, .factor = factor};
    options.original_max_positions = original;
    options.rounds_to_integer = rounds;
    return options;
  };
  const YarnCase cases[] = {{yarn(8, 10000, 40, 64, true), {1.0F, 0.05125F, 0.00025F, 2.5e-5F}},
                            {yarn(16, 150000, 32, 4096, true),
                             {1.0F, 0.225418001F, 0.0508132726F, 0.00775546534F, 0.000914454344F, 1.8188337e-05F,
                              4.09997847e-06F, 9.24208962e-07F}},
                            {yarn(16, 150000, 32, 4096, false),
                             {1.0F, 0.225418001F, 0.0508132726F, 0.00679495931F, 0.000456483918F, 1.8188337e-05F,
                              4.09997847e-06F, 9.24208962e-07F}},
                            {yarn(16, 10000, 4, 64, true),
                             {1.0F, 0.237170815F, 0.049999997F, 0.00790569466F, 0.00249999994F, 0.000790569466F,
                              0.000250000012F, 7.90569466e-05F}},
                            {yarn(16, 10000, 4, 64, false),
                             {1.0F, 0.198583528F, 0.0255952496F, 0.00790569466F, 0.00249999994F, 0.000790569466F,
                              0.000250000012F, 7.90569466e-05F}}};
  for (const YarnCase& c : cases) {
    const at::Tensor ratio = inverse_frequencies(c.options) / at::tensor(c.frequencies);
    EXPECT_LT((ratio - 1).abs().max().item<double>(), 1e-6) << ratio;
  }
  EXPECT_DOUBLE_EQ(yarn_scale(32, 1), 1.3465735902799727);
  EXPECT_DOUBLE_EQ(yarn_scale(4, 1), 1.138629436111989);
  EXPECT_DOUBLE_EQ(yarn_scale(1, 1), 1);
  EXPECT_DOUBLE_EQ(yarn_scale(40, 0), 1);
}

TEST_F(NnTest, AttentionFactorMakesRotatedVectorsLonger) {
  const at::Tensor frequencies = inverse_frequencies({.width = 8}), positions = at::arange(5, at::kLong);
  const at::Tensor input = at::randn({1, 5, 2, 8});
  EXPECT_LT(distance(apply_rotary(input, rotary_angles(frequencies, positions, true, 1.3)),
                     1.3 * apply_rotary(input, rotary_angles(frequencies, positions, true))),
            1e-6);
}

// Only the embeddings of words are scaled.
TEST_F(NnTest, EmbeddingScale) {
  Embedding embedding{make_parameter({9, 6}), make_parameter({4, 6}), 0, 2.5, {}};
  ForwardContext context;
  context.positions = at::arange(4, at::kLong);
  const at::Tensor tokens = at::tensor({3, 0, 8, 3}, at::kLong).view({1, 4}), grad = at::randn({1, 4, 6});
  const at::Tensor output = embedding.forward(tokens, context);
  const at::Tensor expected = 2.5 * embedding.words.data.index({tokens.view(-1)}) + embedding.positions->data;
  EXPECT_LT(distance(output, expected.unsqueeze(0)), 1e-6);
  backward(output, grad);
  EXPECT_LT(distance(embedding.words.main_grad, at::zeros({9, 6}).index_add(0, tokens.view(-1), 2.5 * grad[0])), 1e-6);
  EXPECT_LT(distance(embedding.positions->main_grad, grad[0]), 1e-6);
}

TEST_F(NnTest, CrossEntropyIgnoresPaddingColumns) {
  const at::Tensor logits = leaf({2, 5, 16}), labels = at::randint(0, 13, {2, 5}, at::kLong), grad = at::rand({2, 5});
  const at::Tensor losses = cross_entropy(logits.clone(), labels, 13);
  backward(losses, grad);
  const at::Tensor x = leaf_of(logits);
  const at::Tensor expected =
      at::cross_entropy_loss(x.narrow(-1, 0, 13).reshape({-1, 13}), labels.reshape(-1), {}, at::Reduction::None);
  backward(expected.view({2, 5}), grad);
  EXPECT_LT(distance(losses, expected.view({2, 5})), 1e-6);
  EXPECT_LT(distance(logits.grad(), x.grad()), 1e-6);
  EXPECT_EQ(logits.grad().narrow(-1, 13, 3).abs().sum().item<float>(), 0);
}

TEST_F(NnTest, EmbeddingAddsRepeatedRows) {
  const tensor::Parameter table = make_parameter({9, 70});
  const at::Tensor indices = at::tensor({3, 3, 0, 8, 3, 1}, at::kLong).view({2, 3}), grad = at::randn({2, 3, 70});
  backward(embed(indices, table), grad);
  EXPECT_LT(distance(table.main_grad, at::zeros({9, 70}).index_add(0, indices.reshape(-1), grad.reshape({-1, 70}))),
            1e-6);
}

AttentionOptions attention(std::int64_t heads, std::int64_t kv_heads, std::int64_t window = 0) {
  AttentionOptions options;
  options.num_heads = options.num_global_heads = heads;
  options.num_kv_heads = kv_heads;
  options.head_width = 8;
  options.window = window;
  return options;
}

// Fused == softmax(q kᵀ / sqrt(d) + mask) v written out, for grouped heads, windows, segments and unequal lengths.
TEST_F(NnTest, AttentionEqualsItsEquation) {
  struct Case {
    std::int64_t heads, kv_heads, tokens, keys, window;
    bool packed;
  };
  const Case cases[] = {{4, 4, 9, 9, 0, false}, {4, 2, 9, 9, 0, false}, {4, 1, 9, 9, 3, false}, {4, 2, 9, 9, 0, true},
                        {4, 2, 1, 9, 0, false}, {4, 2, 3, 9, 0, false}, {4, 2, 1, 9, 4, false}, {2, 2, 1, 1, 0, false}};
  for (const Case& c : cases) {
    const at::Tensor query = leaf({2, c.heads, c.tokens, 8}), key = leaf({2, c.kv_heads, c.keys, 8}),
                     value = leaf({2, c.kv_heads, c.keys, 8});
    const at::Tensor grad = at::randn({2, c.heads, c.tokens, 8});
    ForwardContext context;
    at::Tensor allowed = at::ones({c.tokens, c.keys}, at::kBool).tril(c.keys - c.tokens);
    if (c.window > 0)
      allowed = allowed.logical_and(at::ones({c.tokens, c.keys}, at::kBool).triu(c.keys - c.tokens - c.window + 1));
    if (c.packed) {
      context.segments = at::zeros({2, c.tokens}, at::kLong);
      context.segments.narrow(1, 4, 5).fill_(1);
      allowed = at::block_diag({at::ones({4, 4}), at::ones({5, 5})}).to(at::kBool).logical_and(allowed);
    }
    const at::Tensor q = leaf_of(query.to(at::kDouble)), k = leaf_of(key.to(at::kDouble)),
                     v = leaf_of(value.to(at::kDouble));
    const auto repeat = [&](const at::Tensor& t) { return t.repeat_interleave(c.heads / c.kv_heads, 1); };
    const at::Tensor scores =
        (at::matmul(q, repeat(k).transpose(-1, -2)) / std::sqrt(8.0)).masked_fill(allowed.logical_not(), -1e300);
    const at::Tensor expected = at::matmul(at::softmax(scores, -1), repeat(v));
    backward(expected, grad.to(at::kDouble));
    for (const bool fused : {true, false}) {
      AttentionOptions options = attention(c.heads, c.kv_heads, c.window);
      options.fused = fused;
      const at::Tensor a = leaf_of(query), b = leaf_of(key), d = leaf_of(value);
      const at::Tensor output = core_attention(a, b, d, options, context);
      backward(output, grad);
      EXPECT_LT(distance(output.to(at::kDouble), expected), 2e-6);
      EXPECT_LT(distance(a.grad().to(at::kDouble), q.grad()), 5e-6);
      EXPECT_LT(distance(b.grad().to(at::kDouble), k.grad()), 5e-6);
      EXPECT_LT(distance(d.grad().to(at::kDouble), v.grad()), 5e-6);
    }
  }
}

// Dropout of a global batch cut into microbatches == the same cut of the whole, and another step drops other elements.
TEST_F(NnTest, DropoutDependsOnThePlaceInTheGlobalBatch) {
  ForwardContext context;
  context.training = true;
  context.seed = 5;
  context.step = 3;
  const at::Tensor input = leaf({4, 6, 10});
  const at::Tensor whole = dropout(input, 0.4, "x", context);
  backward(whole, at::ones_like(whole));
  EXPECT_TRUE(at::equal(input.grad() * input, whole));
  context.first_sample = 2;
  EXPECT_TRUE(at::equal(dropout(input.narrow(0, 2, 2), 0.4, "x", context), whole.narrow(0, 2, 2)));
  context.first_sample = 0;
  EXPECT_FALSE(at::equal(dropout(input, 0.4, "y", context), whole));
  context.step = 4;
  EXPECT_FALSE(at::equal(dropout(input, 0.4, "x", context), whole));
  context.training = false;
  EXPECT_TRUE(dropout(input, 0.4, "x", context).is_same(input));
}

TEST_F(NnTest, AttentionDropoutByHead) {
  ForwardContext context;
  context.training = true;
  AttentionOptions options = attention(4, 4);
  options.dropout = 0.5;
  const at::Tensor query = at::randn({1, 4, 6, 8}), key = at::randn({1, 4, 6, 8}), value = at::randn({1, 4, 6, 8});
  const at::Tensor whole = core_attention(query, key, value, options, context);
  options.first_head = 2;
  options.num_heads = options.num_kv_heads = 2;
  const auto half = [](const at::Tensor& t) { return t.narrow(1, 2, 2); };
  EXPECT_LT(distance(core_attention(half(query), half(key), half(value), options, context), half(whole)), 1e-6);
}

TEST_F(NnTest, RecomputeGivesTheSameGradients) {
  Linear layer{make_parameter({6, 6}), make_parameter({6})};
  const auto function = [&](const std::vector<at::Tensor>& inputs) {
    return at::tanh(layer.forward(inputs[0])) * inputs[1];
  };
  const at::Tensor a = leaf({3, 6}), b = leaf({3, 6}), grad = at::randn({3, 6});
  backward(function({a, b}), grad);
  const at::Tensor weight_grad = layer.weight.main_grad.clone();
  layer.weight.main_grad.zero_();
  const at::Tensor c = leaf_of(a), d = leaf_of(b);
  backward(recompute(function, {c, d}), grad);
  EXPECT_TRUE(at::equal(c.grad(), a.grad()));
  EXPECT_TRUE(at::equal(d.grad(), b.grad()));
  EXPECT_TRUE(at::equal(layer.weight.main_grad, weight_grad));
}

}  // namespace
}  // namespace pharos::nn
