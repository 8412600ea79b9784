// Latent attention against its equations in float64, and divided over ranks or with a cache against one whole pass.
#include "pharos/nn/latent_attention.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "pharos/comm/testing.h"
#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::nn {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 8, kHidden = 12, kHeads = 4, kContent = 6, kRotary = 4, kValue = 5,
                       kRank = 8, kQueryRank = 7;

at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }
void backward(const at::Tensor& output, const at::Tensor& grad) { torch::autograd::backward({output}, {grad}); }

/// Largest difference relative to the largest value of `b`.
double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

struct Case {
  const char* name;
  bool compressed_queries = true, norms = true, bias = false, interleaved = false;
  std::int64_t window = 0;
  double attention_factor = 1;
  std::optional<double> scale = {}, softcap = {};
  bool recompute_core = false, recompute_up = false, fused = true;
  double dropout = 0;
};

const Case kCases[] = {
    {.name = "Plain"},
    {.name = "DirectQueries", .compressed_queries = false, .interleaved = true},
    {.name = "Biases", .bias = true, .attention_factor = 1.2, .scale = 0.9},
    {.name = "NoNorms", .norms = false, .window = 3, .fused = false},
    {.name = "RecomputedCore", .interleaved = true, .recompute_core = true},
    {.name = "RecomputedUpProjection", .bias = true, .recompute_core = true, .recompute_up = true},
    {.name = "DirectRecomputedQueries", .compressed_queries = false, .recompute_up = true},
    {.name = "CappedWithBiases", .bias = true, .softcap = 0.5},
};

using Weights = std::map<std::string, at::Tensor>;

/// Whole weights by their names in LatentAttention.
Weights draw_weights(const Case& c) {
  Weights weights;
  const auto draw = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    weights[name + ".weight"] = at::randn({out, in}) * 0.4;
    if (c.bias) weights[name + ".bias"] = at::randn({out}) * 0.4;
  };
  if (c.compressed_queries) {
    draw("linear_q_down_proj", kQueryRank, kHidden);
    if (c.norms) weights["q_layernorm"] = 1 + 0.3 * at::randn({kQueryRank});
    draw("linear_q_up_proj", kHeads * (kContent + kRotary), kQueryRank);
  } else {
    draw("linear_q_proj", kHeads * (kContent + kRotary), kHidden);
  }
  draw("linear_kv_down_proj", kRank + kRotary, kHidden);
  if (c.norms) weights["kv_layernorm"] = 1 + 0.3 * at::randn({kRank});
  draw("linear_kv_up_proj", kHeads * (kContent + kValue), kRank);
  draw("linear_proj", kHidden, kHeads * kValue);
  return weights;
}

RotaryAngles angles_of(const Case& c, const at::Tensor& positions) {
  return rotary_angles(inverse_frequencies({.width = kRotary, .base = 100}), positions, c.interleaved,
                       c.attention_factor);
}

/// One layer in float64 under autograd, written with scores.
at::Tensor by_equation(const Case& c, const Weights& weights, const at::Tensor& hidden) {
  const auto linear = [&](const std::string& name, const at::Tensor& input) {
    const at::Tensor product = at::matmul(input, weights.at(name + ".weight").t());
    return c.bias ? product + weights.at(name + ".bias") : product;
  };
  const auto norm = [&](const std::string& name, const at::Tensor& input) {
    return c.norms ? input * at::rsqrt(input.square().mean(-1, true) + 1e-5) * weights.at(name) : input;
  };
  // Pairs as complex numbers times factor · exp(i position frequency).
  const auto rotate = [&](const at::Tensor& input) {
    const at::Tensor frequencies =
        at::pow(100.0, -at::arange(0, kRotary, 2, at::kDouble) / static_cast<double>(kRotary));
    const at::Tensor angle = at::arange(input.size(1), at::kDouble).view({-1, 1, 1}) * frequencies;
    const auto halves = c.interleaved
                            ? std::vector<at::Tensor>{input.slice(-1, 0, kRotary, 2), input.slice(-1, 1, kRotary, 2)}
                            : input.chunk(2, -1);
    const at::Tensor real = (halves[0] * angle.cos() - halves[1] * angle.sin()) * c.attention_factor;
    const at::Tensor imaginary = (halves[1] * angle.cos() + halves[0] * angle.sin()) * c.attention_factor;
    return c.interleaved ? at::stack({real, imaginary}, -1).flatten(-2) : at::cat({real, imaginary}, -1);
  };
  const at::Tensor query =
      (c.compressed_queries ? linear("linear_q_up_proj", norm("q_layernorm", linear("linear_q_down_proj", hidden)))
                            : linear("linear_q_proj", hidden))
          .unflatten(-1, {kHeads, kContent + kRotary});
  const at::Tensor compressed = linear("linear_kv_down_proj", hidden);
  const at::Tensor shared = rotate(compressed.narrow(-1, kRank, kRotary).unsqueeze(2));
  const at::Tensor formed = linear("linear_kv_up_proj", norm("kv_layernorm", compressed.narrow(-1, 0, kRank)))
                                .unflatten(-1, {kHeads, kContent + kValue});
  const at::Tensor scores =
      at::einsum("bihd,bjhd->bhij", {query.narrow(-1, 0, kContent), formed.narrow(-1, 0, kContent)}) +
      at::einsum("bihd,bjd->bhij", {rotate(query.narrow(-1, kContent, kRotary)), shared.squeeze(2)});
  at::Tensor scaled = scores * c.scale.value_or(1 / std::sqrt(static_cast<double>(kContent + kRotary)));
  if (c.softcap) scaled = *c.softcap * at::tanh(scaled / *c.softcap);
  const std::int64_t tokens = hidden.size(1);
  at::Tensor allowed = at::ones({tokens, tokens}, at::kBool).tril();
  if (c.window > 0) allowed = allowed.triu(1 - c.window);
  const at::Tensor weight = at::softmax(scaled.masked_fill(allowed.logical_not(), -1e300), -1);
  const at::Tensor mixed = at::einsum("bhij,bjhd->bihd", {weight, formed.narrow(-1, kContent, kValue)});
  return linear("linear_proj", mixed.flatten(2));
}

/// Axis that tensor-parallel ranks divide; none: -1.
int split_axis(const std::string& name) {
  const bool is_bias = name.ends_with(".bias");
  if (name.starts_with("linear_proj")) return is_bias ? -1 : 1;
  return name.starts_with("linear_q_proj") || name.find("_up_proj") != std::string::npos ? 0 : -1;
}

at::Tensor part_of(const std::string& name, const at::Tensor& whole, const TensorParallel& parallel) {
  const int axis = split_axis(name);
  if (axis < 0) return whole.detach();
  const std::int64_t length = whole.size(axis) / parallel.size();
  return whole.detach().narrow(axis, parallel.rank() * length, length);
}

LatentAttention layer_of(const Case& c, const Weights& weights, const TensorParallel& parallel = {},
                         const ContextParallel& context_parallel = {}) {
  const auto parameter = [&](const std::string& name) {
    tensor::Parameter made;
    made.data = leaf_of(part_of(name, weights.at(name), parallel));
    made.main_grad = at::zeros(made.data.sizes());
    return made;
  };
  const auto fill = [&](auto& linear, const std::string& name) {
    linear.weight = parameter(name + ".weight");
    if (c.bias) linear.bias = parameter(name + ".bias");
    if constexpr (requires { linear.parallel; }) linear.parallel = parallel;
  };
  LatentAttention layer;
  if (c.compressed_queries) {
    fill(layer.linear_q_down_proj.emplace(), "linear_q_down_proj");
    fill(layer.linear_q_up_proj.emplace(), "linear_q_up_proj");
    if (c.norms) layer.q_layernorm.emplace().weight = parameter("q_layernorm");
  } else {
    fill(layer.linear_q_proj.emplace(), "linear_q_proj");
  }
  fill(layer.linear_kv_down_proj, "linear_kv_down_proj");
  if (c.norms) layer.kv_layernorm.emplace().weight = parameter("kv_layernorm");
  fill(layer.linear_kv_up_proj, "linear_kv_up_proj");
  fill(layer.linear_proj, "linear_proj");
  layer.options.num_heads = layer.options.num_kv_heads = kHeads / parallel.size();
  layer.options.num_global_heads = kHeads;
  layer.options.first_head = layer.options.num_heads * parallel.rank();
  layer.options.head_width = kContent + kRotary;
  layer.options.value_width = kValue;
  layer.options.scale = c.scale;
  layer.options.softcap = c.softcap;
  layer.options.window = c.window;
  layer.options.fused = c.fused;
  layer.options.dropout = c.dropout;
  layer.options.recompute = c.recompute_core;
  layer.options.name = "test";
  layer.content_width = kContent;
  layer.rotary_width = kRotary;
  layer.kv_rank = kRank;
  layer.recompute_up_projection = c.recompute_up;
  layer.parallel = parallel;
  layer.context_parallel = context_parallel;
  return layer;
}

Weights gradients_of(const LatentAttention& layer) {
  Weights found;
  const auto add = [&](const std::string& name, const auto& linear) {
    found[name + ".weight"] = linear.weight.main_grad;
    if (linear.bias) found[name + ".bias"] = linear.bias->main_grad;
  };
  const auto optional = [&](const std::string& name, const auto& linear) {
    if (linear) add(name, *linear);
  };
  optional("linear_q_proj", layer.linear_q_proj);
  optional("linear_q_down_proj", layer.linear_q_down_proj);
  optional("linear_q_up_proj", layer.linear_q_up_proj);
  add("linear_kv_down_proj", layer.linear_kv_down_proj);
  add("linear_kv_up_proj", layer.linear_kv_up_proj);
  add("linear_proj", layer.linear_proj);
  if (layer.q_layernorm) found["q_layernorm"] = layer.q_layernorm->weight.main_grad;
  if (layer.kv_layernorm) found["kv_layernorm"] = layer.kv_layernorm->weight.main_grad;
  return found;
}

TEST(LatentLayer, EqualsItsEquations) {
  at::manual_seed(7);
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Weights weights = draw_weights(c);
    const at::Tensor hidden = leaf_of(at::randn({kBatch, kTokens, kHidden})),
                     grad = at::randn({kBatch, kTokens, kHidden});
    const LatentAttention layer = layer_of(c, weights);
    const RotaryAngles angles = angles_of(c, at::arange(kTokens, at::kLong));
    const at::Tensor output = layer.forward(hidden, &angles, {}, 0);
    backward(output, grad);
    Weights wide;
    for (const auto& [name, values] : weights) wide[name] = leaf_of(values.to(at::kDouble));
    const at::Tensor x = leaf_of(hidden.to(at::kDouble)), expected = by_equation(c, wide, x);
    backward(expected, grad.to(at::kDouble));
    EXPECT_LT(distance(output, expected), 3e-6);
    EXPECT_LT(distance(hidden.grad(), x.grad()), 5e-6);
    const Weights found = gradients_of(layer);
    ASSERT_EQ(found.size(), wide.size());
    for (const auto& [name, gradient] : found) EXPECT_LT(distance(gradient, wide.at(name).grad()), 5e-6) << name;
  }
}

KeyValueCache::Layer room_for_latents() {
  return {at::empty({kBatch, 1, kTokens, kRank}), at::empty({kBatch, 1, kTokens, kRotary})};
}

// The absorbed form, whatever number of tokens comes at a time, of several sequences.
TEST(LatentLayer, WithACacheEqualsTheWholePass) {
  at::manual_seed(8);
  const at::NoGradGuard no_grad;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const LatentAttention layer = layer_of(c, draw_weights(c));
    const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden});
    const RotaryAngles angles = angles_of(c, at::arange(kTokens, at::kLong));
    const at::Tensor whole = layer.forward(hidden, &angles, {}, 0);
    for (const std::vector<std::int64_t>& steps : {std::vector<std::int64_t>{8}, {3, 1, 2, 1, 1}, {1, 1, 1, 5}}) {
      KeyValueCache cache;
      cache.layers = {{}, room_for_latents()};
      ForwardContext context;
      context.cache = &cache;
      for (const std::int64_t count : steps) {
        const RotaryAngles own = angles_of(c, at::arange(cache.length, cache.length + count, at::kLong));
        const at::Tensor output = layer.forward(hidden.narrow(1, cache.length, count), &own, context, 1);
        EXPECT_LT(distance(output, whole.narrow(1, cache.length, count)), 5e-6) << cache.length;
        cache.length += count;
      }
      const RotaryAngles own = angles_of(c, at::arange(1, at::kLong));
      EXPECT_ANY_THROW(layer.forward(hidden.narrow(1, 0, 1), &own, context, 1)) << "the cache is full";
    }
  }
}

struct Layout {
  const char* name;
  std::int64_t tensor = 1, context = 1;
  bool sequence = false;
  ContextParallel::Exchange exchange = ContextParallel::Exchange::kRing;
};

const Layout kLayouts[] = {
    {.name = "Tensor2", .tensor = 2},
    {.name = "Tensor2Sequence", .tensor = 2, .sequence = true},
    {.name = "Tensor4Sequence", .tensor = 4, .sequence = true},
    {.name = "Context2Ring", .context = 2},
    {.name = "Context2AllGather", .context = 2, .exchange = ContextParallel::Exchange::kAllGather},
    {.name = "Tensor2Context2", .tensor = 2, .context = 2},
    {.name = "Tensor2SequenceContext2", .tensor = 2, .context = 2, .sequence = true},
};

struct DividedLatentLayer : ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, DividedLatentLayer, ::testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

/// A layer on one rank, and what its ranks have to find.
struct Reference {
  Case options;
  Weights weights;
  at::Tensor hidden, output, output_grad;
  Weights gradients;
};

ForwardContext training_context() {
  ForwardContext context;
  context.training = true;
  context.seed = 3;
  return context;
}

Reference make_reference(const Case& c) {
  Reference reference{c, draw_weights(c), leaf_of(at::randn({kBatch, kTokens, kHidden})), {}, {}, {}};
  const LatentAttention layer = layer_of(c, reference.weights);
  const RotaryAngles angles = angles_of(c, at::arange(kTokens, at::kLong));
  reference.output = layer.forward(reference.hidden, &angles, training_context(), 0);
  reference.output_grad = at::randn({kBatch, kTokens, kHidden});
  backward(reference.output, reference.output_grad);
  reference.gradients = gradients_of(layer);
  return reference;
}

void expect_slices(const Reference& whole, const TensorParallel& tensor, const ContextParallel& context) {
  const Case& c = whole.options;
  const auto own = [&](const at::Tensor& all) {
    const at::Tensor part = zigzag_slice(all.detach(), 1, context.rank(), context.size());
    if (!tensor.splits_tokens()) return part;
    const std::int64_t count = part.size(1) / tensor.size();
    return part.narrow(1, count * tensor.rank(), count);
  };
  const LatentAttention layer = layer_of(c, whole.weights, tensor, context);
  const at::Tensor input = leaf_of(own(whole.hidden));
  const RotaryAngles angles =
      angles_of(c, zigzag_slice(at::arange(kTokens, at::kLong), 0, context.rank(), context.size()));
  const at::Tensor output = layer.forward(input, &angles, training_context(), 0);
  backward(output, own(whole.output_grad));
  EXPECT_LT(distance(output, own(whole.output)), 3e-6) << c.name;
  EXPECT_LT(distance(input.grad(), own(whole.hidden.grad())), 5e-6) << c.name;
  for (const auto& [name, gradient] : gradients_of(layer)) {
    if (context.is_split()) context.group->all_reduce(gradient, comm::ReduceOp::kSum, {"test"}).wait();
    if (tensor.splits_tokens() && split_axis(name) < 0)
      tensor.group->all_reduce(gradient, comm::ReduceOp::kSum, {"test"}).wait();
    EXPECT_LT(distance(gradient, part_of(name, whole.gradients.at(name), tensor)), 5e-6) << c.name << " " << name;
  }
  if (context.is_split() || c.dropout > 0) return;
  const at::NoGradGuard no_grad;  // the absorbed form has this rank's heads and the latents of all tokens
  KeyValueCache cache;
  cache.layers = {room_for_latents()};
  ForwardContext with_cache;
  with_cache.cache = &cache;
  EXPECT_LT(distance(layer.forward(input, &angles, with_cache, 0), own(whole.output)), 5e-6) << c.name;
}

// Outputs, input gradients and weight gradients are slices of those of one rank. Ranks that divide tokens have summands
// of the gradients of weights: those of a tensor-parallel group of what is whole on each of its ranks.
TEST_P(DividedLatentLayer, IsTheWholeLayer) {
  const Layout& layout = GetParam();
  at::manual_seed(7);
  std::vector<Reference> references;
  for (const Case& c : kCases) references.push_back(make_reference(c));
  references.push_back(make_reference({.name = "Dropout", .compressed_queries = false, .dropout = 0.3}));
  comm::testing::run_ranks(layout.tensor * layout.context, [&](comm::World& world) {
    const comm::Mesh mesh(world.size(), {.tensor = layout.tensor, .context = layout.context});
    const TensorParallel tensor{&world.group(mesh, {comm::MeshDim::kTensor}), layout.sequence};
    const ContextParallel context{&world.group(mesh, {comm::MeshDim::kContext}), layout.exchange};
    for (const Reference& reference : references) expect_slices(reference, tensor, context);
  });
}

// Weights and activations in bfloat16, sums in float32: as far from the float32 layer as rounding each of a few
// products in a row to 8 bits leads.
TEST(LatentLayerInBFloat16, IsCloseToFloat32) {
  at::manual_seed(9);
  const Case c{.name = "", .bias = true};
  const Weights weights = draw_weights(c);
  Weights narrow;
  for (const auto& [name, values] : weights) narrow[name] = values.to(at::kBFloat16);
  const LatentAttention exact = layer_of(c, weights), layer = layer_of(c, narrow);
  const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden}), grad = at::randn({kBatch, kTokens, kHidden});
  const RotaryAngles angles = angles_of(c, at::arange(kTokens, at::kLong));
  const at::Tensor input = leaf_of(hidden), narrow_input = leaf_of(hidden.to(at::kBFloat16));
  const at::Tensor expected = exact.forward(input, &angles, {}, 0),
                   output = layer.forward(narrow_input, &angles, {}, 0);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_LT(distance(output, expected), 0.03);
  backward(expected, grad);
  backward(output, grad.to(at::kBFloat16));
  EXPECT_LT(distance(narrow_input.grad(), input.grad()), 0.05);
  const Weights found = gradients_of(layer), wanted = gradients_of(exact);
  for (const auto& [name, gradient] : found) EXPECT_LT(distance(gradient, wanted.at(name)), 0.05) << name;
}

// Without angles the rotary parts are ordinary parts of keys and queries.
TEST(LatentLayerWithoutAngles, IsOneWithAnglesOfZero) {
  at::manual_seed(8);
  const Case c{.name = ""};
  const LatentAttention layer = layer_of(c, draw_weights(c));
  const at::Tensor hidden = at::randn({kBatch, kTokens, kHidden});
  const RotaryAngles zero = angles_of(c, at::zeros({kTokens}, at::kLong));
  EXPECT_LT(distance(layer.forward(hidden, nullptr, {}, 0), layer.forward(hidden, &zero, {}, 0)), 1e-6);
}

}  // namespace
}  // namespace pharos::nn
