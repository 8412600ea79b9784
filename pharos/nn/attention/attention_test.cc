// Scale, cap, sinks and width of values of attention against the equation in float64.
#include "pharos/nn/attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace pharos::nn {
namespace {

tensor::Parameter parameter_of(const at::Tensor& values) {
  tensor::Parameter parameter;
  parameter.data = values.detach().clone().requires_grad_();
  parameter.main_grad = at::zeros(values.sizes());
  return parameter;
}

at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }
at::Tensor wide_leaf_of(const at::Tensor& values) { return leaf_of(values.to(at::kDouble)); }
void backward(const at::Tensor& output, const at::Tensor& grad) { torch::autograd::backward({output}, {grad}); }

/// Largest difference from the float64 `b` relative to its largest value.
double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return ((a.to(at::kDouble) - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

struct Case {
  std::int64_t heads = 4, kv_heads = 4, tokens = 9, keys = 9, width = 8, value_width = 8, window = 0;
  std::optional<double> scale = {}, softcap = {};
  bool sinks = false;
};

AttentionOptions options_of(const Case& c) {
  AttentionOptions options;
  options.num_heads = options.num_global_heads = c.heads;
  options.num_kv_heads = c.kv_heads;
  options.head_width = c.width;
  options.value_width = c.value_width;
  options.window = c.window;
  options.scale = c.scale;
  options.softcap = c.softcap;
  return options;
}

/// Weights e^s / (Σ e^s' + e^sink), s = c tanh(q·k scale / c).
at::Tensor by_equation(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& sinks,
                       const Case& c) {
  const auto repeat = [&](const at::Tensor& t) { return t.repeat_interleave(c.heads / c.kv_heads, 1); };
  at::Tensor scores =
      at::matmul(query, repeat(key).transpose(-1, -2)) * c.scale.value_or(1 / std::sqrt(static_cast<double>(c.width)));
  if (c.softcap) scores = *c.softcap * at::tanh(scores / *c.softcap);
  const std::int64_t tokens = query.size(2), keys = key.size(2);
  at::Tensor allowed = at::ones({tokens, keys}, at::kBool).tril(keys - tokens);
  if (c.window > 0) allowed = allowed.triu(keys - tokens - c.window + 1);
  const at::Tensor exponentials = scores.exp() * allowed;
  at::Tensor sum = exponentials.sum(-1, true);
  if (sinks.defined()) sum = sum + sinks.exp().view({1, -1, 1, 1});
  return at::matmul(exponentials / sum, repeat(value));
}

TEST(Attention, EqualsItsEquationWithEveryOption) {
  const Case cases[] = {{.scale = 0.8},
                        {.kv_heads = 2, .value_width = 5},
                        {.value_width = 12},
                        {.tokens = 3, .value_width = 5, .scale = 0.5},
                        {.tokens = 1, .value_width = 5},
                        {.softcap = 1.5},
                        {.kv_heads = 2, .window = 4, .scale = 0.6, .softcap = 2.0},
                        {.kv_heads = 1, .sinks = true},
                        {.tokens = 1, .sinks = true},
                        {.kv_heads = 2, .value_width = 5, .window = 3, .scale = 0.4, .softcap = 2.0, .sinks = true}};
  at::manual_seed(7);
  for (const Case& c : cases) {
    const at::Tensor query = at::randn({2, c.heads, c.tokens, c.width}),
                     key = at::randn({2, c.kv_heads, c.keys, c.width}),
                     value = at::randn({2, c.kv_heads, c.keys, c.value_width});
    const at::Tensor sinks = c.sinks ? at::randn({c.heads}) : at::Tensor();
    const at::Tensor grad = at::randn({2, c.heads, c.tokens, c.value_width});
    const at::Tensor q = wide_leaf_of(query), k = wide_leaf_of(key), v = wide_leaf_of(value),
                     s = c.sinks ? wide_leaf_of(sinks) : at::Tensor();
    const at::Tensor expected = by_equation(q, k, v, s, c);
    backward(expected, grad.to(at::kDouble));
    for (const bool fused : {true, false}) {
      for (const bool recompute : {true, false}) {
        AttentionOptions options = options_of(c);
        options.fused = fused;
        options.recompute = recompute;
        const at::Tensor a = leaf_of(query), b = leaf_of(key), d = leaf_of(value),
                         e = c.sinks ? leaf_of(sinks) : at::Tensor();
        const at::Tensor output = attend(a, b, d, options, {}, {}, e);
        backward(output, grad);
        EXPECT_LT(distance(output, expected), 2e-6);
        EXPECT_LT(distance(a.grad(), q.grad()), 5e-6);
        EXPECT_LT(distance(b.grad(), k.grad()), 5e-6);
        EXPECT_LT(distance(d.grad(), v.grad()), 5e-6);
        if (c.sinks) {
          EXPECT_LT(distance(e.grad(), s.grad()), 5e-6);
        }
      }
    }
  }
}

// Different widths must not lead to a kernel that keeps scores: what autograd keeps grows with the tokens.
TEST(Attention, OfNarrowValuesStaysFused) {
  const at::Tensor query = at::randn({1, 1, 8, 8}), value = at::randn({1, 1, 8, 5});
  const auto attend_in = [&](at::ScalarType type) {
    const at::Tensor typed = query.to(type).requires_grad_();
    return core_attention(typed, typed, value.to(type), options_of({.heads = 1, .kv_heads = 1}), {}).grad_fn();
  };
  EXPECT_THAT(attend_in(at::kFloat)->name(), ::testing::HasSubstr("CausalAttention"));
  const auto narrow = attend_in(at::kBFloat16);
  ASSERT_EQ(narrow->num_inputs(), 1U);
  EXPECT_THAT(narrow->next_edge(0).function->name(), ::testing::HasSubstr("FlashAttention"));
}

/// A layer of hidden width 12 without rotation or bias.
SelfAttention layer_of(const Case& c) {
  SelfAttention layer;
  const std::int64_t rows = (c.heads + c.kv_heads) * c.width + c.kv_heads * c.value_width;
  layer.qkv.weight = parameter_of(0.3 * at::randn({rows, 12}));
  layer.linear_proj.weight = parameter_of(0.3 * at::randn({12, c.heads * c.value_width}));
  layer.options = options_of(c);
  return layer;
}

at::Tensor by_equation(const SelfAttention& layer, const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& sinks, const Case& c) {
  const auto parts = at::matmul(hidden, weight.t())
                         .split_with_sizes({c.heads * c.width, c.kv_heads * c.width, c.kv_heads * c.value_width}, -1);
  const auto heads = [&](std::size_t i, std::int64_t count) {
    return parts[i].unflatten(-1, {count, -1}).transpose(1, 2);
  };
  const at::Tensor mixed = by_equation(heads(0, c.heads), heads(1, c.kv_heads), heads(2, c.kv_heads), sinks, c);
  return at::matmul(mixed.transpose(1, 2).flatten(2), layer.linear_proj.weight.data.detach().to(at::kDouble).t());
}

// Scale, cap and window as in Gemma 2; sinks and window as in GPT-OSS; in both values of a width of their own.
TEST(SelfAttentionLayer, OfPublishedFamilies) {
  const Case cases[] = {{.kv_heads = 2, .value_width = 6, .window = 4, .scale = 0.25, .softcap = 1.0},
                        {.kv_heads = 2, .value_width = 6, .window = 4, .sinks = true}};
  at::manual_seed(8);
  for (const Case& c : cases) {
    for (const bool recompute : {false, true}) {
      SelfAttention layer = layer_of(c);
      layer.options.recompute = recompute;
      if (c.sinks) layer.sinks = parameter_of(at::randn({c.heads}));
      const at::Tensor hidden = leaf_of(at::randn({2, 9, 12})), grad = at::randn({2, 9, 12});
      const at::Tensor output = layer.forward(hidden, nullptr, {}, 0);
      backward(output, grad);
      const at::Tensor x = wide_leaf_of(hidden), w = wide_leaf_of(layer.qkv.weight.data),
                       s = c.sinks ? wide_leaf_of(layer.sinks->data) : at::Tensor();
      const at::Tensor expected = by_equation(layer, x, w, s, c);
      backward(expected, grad.to(at::kDouble));
      EXPECT_LT(distance(output, expected), 2e-6);
      EXPECT_LT(distance(hidden.grad(), x.grad()), 5e-6);
      EXPECT_LT(distance(layer.qkv.weight.main_grad, w.grad()), 5e-6);
      if (c.sinks) {
        EXPECT_LT(distance(layer.sinks->main_grad, s.grad()), 5e-6);
      }
    }
  }
}

// Softmax off by one: a sink of zero that does not learn.
TEST(SelfAttentionLayer, WithAConstantSink) {
  at::manual_seed(9);
  const Case c{.kv_heads = 2, .sinks = true};
  SelfAttention layer = layer_of(c);
  layer.sinks = parameter_of(at::zeros({c.heads}));
  layer.sinks->trainable = false;
  const at::Tensor hidden = leaf_of(at::randn({1, 5, 12}));
  const at::Tensor output = layer.forward(hidden, nullptr, {}, 0);
  backward(output, at::ones_like(output));
  EXPECT_LT(distance(output,
                     by_equation(layer, hidden.detach().to(at::kDouble), layer.qkv.weight.data.detach().to(at::kDouble),
                                 at::zeros({c.heads}, at::kDouble), c)),
            2e-6);
  EXPECT_EQ(layer.sinks->main_grad.abs().sum().item<float>(), 0);
}

}  // namespace
}  // namespace pharos::nn
