#include "pharos/nn/attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/nn/attention/causal.h"
#include "pharos/nn/context_parallel/attention.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Bool [tokens, keys] or [batch, 1, tokens, keys], true where attention is allowed: causal, within the window if there
/// is one, and within the segment.
at::Tensor allowed_positions(std::int64_t tokens, std::int64_t keys, std::int64_t window, const at::Tensor& segments,
                             const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor distance =
      at::arange(keys - tokens, keys, options).unsqueeze(1) - at::arange(keys, options).unsqueeze(0);
  at::Tensor allowed = distance >= 0;
  if (window > 0) allowed = allowed.logical_and(distance < window);
  if (!segments.defined()) return allowed;
  return (segments.unsqueeze(2) == segments.unsqueeze(1)).logical_and_(allowed).unsqueeze(1);
}

at::Tensor unfused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                             const at::Tensor& allowed, const AttentionOptions& options, const ForwardContext& context,
                             const at::Tensor& sinks) {
  at::Tensor scores = at::matmul(query, key.transpose(-1, -2)) * options.score_scale();
  if (options.softcap) scores = (scores / *options.softcap).tanh() * *options.softcap;
  if (options.softmax_in_fp32) scores = scores.to(at::kFloat);
  if (allowed.defined()) scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  const std::int64_t tokens = query.size(2), keys = key.size(2);
  if (sinks.defined()) {
    const at::Tensor column = sinks.to(scores.scalar_type()).view({1, -1, 1, 1});
    scores = at::cat({scores, column.expand({scores.size(0), -1, tokens, 1})}, -1);
  }
  at::Tensor probabilities = at::softmax(scores, -1).narrow(-1, 0, keys).to(query.scalar_type());
  probabilities = dropout(probabilities, options.dropout, options.name, context,
                          {options.num_global_heads, tokens, keys}, {options.first_head, 0, 0});
  return at::matmul(probabilities, value);
}

at::Tensor fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& allowed, const AttentionOptions& options) {
  const std::optional<at::Tensor> mask = allowed.defined() ? std::optional<at::Tensor>(allowed) : std::nullopt;
  const bool is_causal = !mask && query.size(2) > 1;
  if (is_causal && kernels::fits_causal_attention(query, key, value))
    return kernels::causal_attention(query, key, value, options.score_scale());
  const std::int64_t value_width = value.size(-1);
  if (!query.is_cpu() || value_width == query.size(-1))
    return at::scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, options.score_scale());
  // With different widths the CPU would form scores: more than twice the time of padding, at 192 and 128.
  const std::int64_t width = std::max(query.size(-1), value_width);
  return at::scaled_dot_product_attention(pad_width(query, width), pad_width(key, width), pad_width(value, width), mask,
                                          0.0, is_causal, options.score_scale())
      .narrow(-1, 0, value_width);
}

/// The values of sinks as a differentiable float32 tensor, whose gradient is added to main_grad.
struct SinksFunction : torch::autograd::Function<SinksFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*data*/, const tensor::Parameter* sinks) {
    context->saved_data["sinks"] = reinterpret_cast<std::int64_t>(sinks);
    return tensor::value(*sinks).detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto* sinks = reinterpret_cast<const tensor::Parameter*>(context->saved_data["sinks"].toInt());
    tensor::add_gradient(*sinks, [&](const at::Tensor& main_grad) { main_grad.add_(gradients[0]); });
    return {{}, {}};
  }
};

}  // namespace

double AttentionOptions::score_scale() const { return scale.value_or(1 / std::sqrt(static_cast<double>(head_width))); }

at::Tensor repeat_heads(const at::Tensor& tensor, std::int64_t times) {
  if (times == 1) return tensor;
  return tensor.unsqueeze(2)
      .expand({tensor.size(0), tensor.size(1), times, tensor.size(2), tensor.size(3)})
      .flatten(1, 2);
}

at::Tensor pad_width(const at::Tensor& tensor, std::int64_t width) {
  if (tensor.size(-1) == width) return tensor;
  return at::constant_pad_nd(tensor, {0, width - tensor.size(-1)});
}

at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const AttentionOptions& options, const ForwardContext& context, const at::Tensor& sinks) {
  const std::int64_t tokens = query.size(2), keys = key.size(2);
  const bool drops = context.training && options.dropout > 0;
  const bool is_fused = options.fused && !drops && !options.softcap && !sinks.defined();
  const bool plain_causal = options.window == 0 && !context.segments.defined() && tokens == keys;
  at::Tensor allowed;
  if (!(plain_causal && is_fused) && !(tokens == 1 && options.window == 0)) {
    allowed = allowed_positions(tokens, keys, options.window, context.segments, query.device());
  }
  const std::int64_t group = query.size(1) / key.size(1);
  const at::Tensor keys_all = repeat_heads(key, group), values_all = repeat_heads(value, group);
  return is_fused ? fused_attention(query, keys_all, values_all, allowed, options)
                  : unfused_attention(query, keys_all, values_all, allowed, options, context, sinks);
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionOptions& options, const ForwardContext& context, const ContextParallel& parallel,
                  const at::Tensor& sinks) {
  // By value: the caller's options need not be there in the backward pass.
  const auto core = [options, context, parallel](const std::vector<at::Tensor>& inputs) {
    const at::Tensor own_sinks = inputs.size() > 3 ? inputs[3] : at::Tensor();
    if (parallel.is_split())
      return context_parallel_attention(inputs[0], inputs[1], inputs[2], options, context, parallel, own_sinks);
    return core_attention(inputs[0], inputs[1], inputs[2], options, context, own_sinks);
  };
  std::vector<at::Tensor> inputs = {query, key, value};
  if (sinks.defined()) inputs.push_back(sinks);
  return options.recompute && c10::GradMode::is_enabled() ? recompute(core, inputs) : core(inputs);
}

at::Tensor SelfAttention::forward(const at::Tensor& hidden, const RotaryAngles* angles, const ForwardContext& context,
                                  std::size_t layer) const {
  const at::Tensor projected = qkv.forward(hidden);
  const std::int64_t batch = projected.size(0), tokens = projected.size(1), width = options.head_width;
  const std::int64_t value_width = options.width_of_values();
  const auto parts = projected.split_with_sizes(
      {options.num_heads * width, options.num_kv_heads * width, options.num_kv_heads * value_width}, -1);
  at::Tensor query = parts[0].unflatten(-1, {options.num_heads, width});
  at::Tensor key = parts[1].unflatten(-1, {options.num_kv_heads, width});
  at::Tensor value = parts[2].unflatten(-1, {options.num_kv_heads, value_width}).transpose(1, 2);
  if (q_layernorm) query = q_layernorm->forward(query);
  if (k_layernorm) key = k_layernorm->forward(key);
  query = angles != nullptr ? apply_rotary(query, *angles) : query.transpose(1, 2);
  key = angles != nullptr ? apply_rotary(key, *angles) : key.transpose(1, 2);
  if (context.cache != nullptr) {
    auto& cache = context.cache->layers[layer];
    const std::int64_t seen = context.cache->length;
    PHAROS_CHECK(seen + tokens <= cache.keys.size(2),
                 "key-value cache of " + std::to_string(cache.keys.size(2)) + " tokens is full");
    cache.keys.narrow(2, seen, tokens).copy_(key);
    cache.values.narrow(2, seen, tokens).copy_(value);
    key = cache.keys.narrow(2, 0, seen + tokens);
    value = cache.values.narrow(2, 0, seen + tokens);
  }
  at::Tensor logits;
  if (sinks) logits = sinks->trainable ? SinksFunction::apply(sinks->data, &*sinks) : lasting_value(*sinks);
  const at::Tensor mixed = attend(query, key, value, options, context, context_parallel, logits);
  return linear_proj.forward(mixed.transpose(1, 2).reshape({batch, tokens, options.num_heads * value_width}));
}

}  // namespace pharos::nn
