#include "pharos/nn/attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "pharos/base/error.h"
#include "pharos/nn/context_parallel/attention.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

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
                             const at::Tensor& allowed, const AttentionOptions& options,
                             const ForwardContext& context) {
  at::Tensor scores =
      at::matmul(query, key.transpose(-1, -2)) * (1 / std::sqrt(static_cast<double>(options.head_width)));
  if (options.softmax_in_fp32) scores = scores.to(at::kFloat);
  if (allowed.defined()) scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
  at::Tensor probabilities = at::softmax(scores, -1).to(query.scalar_type());
  const std::int64_t tokens = query.size(2), keys = key.size(2);
  probabilities = dropout(probabilities, options.dropout, options.name, context,
                          {options.num_global_heads, tokens, keys}, {options.first_head, 0, 0});
  return at::matmul(probabilities, value);
}

}  // namespace

at::Tensor repeat_heads(const at::Tensor& tensor, std::int64_t times) {
  if (times == 1) return tensor;
  return tensor.unsqueeze(2)
      .expand({tensor.size(0), tensor.size(1), times, tensor.size(2), tensor.size(3)})
      .flatten(1, 2);
}

at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const AttentionOptions& options, const ForwardContext& context) {
  const std::int64_t tokens = query.size(2), keys = key.size(2);
  const bool drops = context.training && options.dropout > 0;
  const bool plain_causal = options.window == 0 && !context.segments.defined() && tokens == keys;
  at::Tensor allowed;
  if (!(plain_causal && options.fused && !drops) && !(tokens == 1 && options.window == 0)) {
    allowed = allowed_positions(tokens, keys, options.window, context.segments, query.device());
  }
  const std::int64_t group = query.size(1) / key.size(1);
  const at::Tensor keys_all = repeat_heads(key, group), values_all = repeat_heads(value, group);
  if (drops || !options.fused) return unfused_attention(query, keys_all, values_all, allowed, options, context);
  const std::optional<at::Tensor> mask = allowed.defined() ? std::optional<at::Tensor>(allowed) : std::nullopt;
  return at::scaled_dot_product_attention(query, keys_all, values_all, mask, 0.0, !mask && tokens > 1);
}

at::Tensor SelfAttention::forward(const at::Tensor& hidden, const RotaryAngles* angles, const ForwardContext& context,
                                  std::size_t layer) const {
  const at::Tensor projected = qkv.forward(hidden);
  const std::int64_t batch = projected.size(0), tokens = projected.size(1), width = options.head_width;
  const auto parts = projected.split_with_sizes(
      {options.num_heads * width, options.num_kv_heads * width, options.num_kv_heads * width}, -1);
  at::Tensor query = parts[0].unflatten(-1, {options.num_heads, width});
  at::Tensor key = parts[1].unflatten(-1, {options.num_kv_heads, width});
  at::Tensor value = parts[2].unflatten(-1, {options.num_kv_heads, width}).transpose(1, 2);
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
  const auto core = [this, context](const std::vector<at::Tensor>& inputs) {
    if (context_parallel.is_split())
      return context_parallel_attention(inputs[0], inputs[1], inputs[2], options, context, context_parallel);
    return core_attention(inputs[0], inputs[1], inputs[2], options, context);
  };
  const at::Tensor mixed = options.recompute && c10::GradMode::is_enabled() ? recompute(core, {query, key, value})
                                                                            : core({query, key, value});
  return linear_proj.forward(mixed.transpose(1, 2).reshape({batch, tokens, options.num_heads * width}));
}

}  // namespace pharos::nn
