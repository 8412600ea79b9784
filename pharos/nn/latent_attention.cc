#include "pharos/nn/latent_attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "pharos/base/error.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What all heads read, for the heads of this rank: all tokens of it. Each rank's heads give a summand of the gradient.
struct ShareFunction : torch::autograd::Function<ShareFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const TensorParallel& parallel) {
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(parallel.group);
    context->saved_data["sequence"] = parallel.sequence;
    if (!parallel.splits_tokens()) return input.view_as(input);
    return TokenGather(input, parallel, "part that all heads share").wait();
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const TensorParallel parallel{reinterpret_cast<comm::Group*>(context->saved_data["group"].toInt()),
                                  context->saved_data["sequence"].toBool()};
    return {
        reduce_output(gradients[0].clone(at::MemoryFormat::Contiguous), parallel, "gradient of what all heads share"),
        {}};
  }
};

/// [batch, tokens of this rank, width] -> [batch, tokens, width].
at::Tensor share(const at::Tensor& input, const TensorParallel& parallel) {
  return parallel.is_split() ? ShareFunction::apply(input, parallel) : input;
}

/// [batch, tokens, heads, width] -> [batch, heads, tokens, width], turned by position if there are angles.
at::Tensor rotate_heads(const at::Tensor& input, const RotaryAngles* angles) {
  return angles != nullptr ? apply_rotary(input, *angles) : input.transpose(1, 2);
}

/// Queries of this rank's heads: [batch, heads, tokens, width] without and with rotation.
struct Queries {
  at::Tensor content, rotary;
};

Queries queries_of(const LatentAttention& layer, const at::Tensor& source, const RotaryAngles* angles) {
  const at::Tensor projected = (layer.linear_q_proj ? *layer.linear_q_proj : *layer.linear_q_up_proj).forward(source);
  const at::Tensor heads = projected.unflatten(-1, {layer.options.num_heads, layer.content_width + layer.rotary_width});
  return {heads.narrow(-1, 0, layer.content_width).transpose(1, 2),
          rotate_heads(heads.narrow(-1, layer.content_width, layer.rotary_width), angles)};
}

/// Keys and values formed from the latents. source: what queries come from, [batch, tokens, …]; latent: [batch, tokens,
/// kv rank], under sequence parallelism both of this rank's tokens; shared_key: [batch, 1, tokens, rotary width], of
/// all tokens. Returns [batch, heads, tokens, value width].
at::Tensor attend_to_formed(const LatentAttention& layer, const at::Tensor& source, const at::Tensor& latent,
                            const at::Tensor& shared_key, const RotaryAngles* angles, const ForwardContext& context) {
  const std::int64_t value_width = layer.options.width_of_values(), heads = layer.options.num_heads;
  const Queries queries = queries_of(layer, source, angles);
  const at::Tensor formed =
      layer.linear_kv_up_proj.forward(latent).unflatten(-1, {heads, layer.content_width + value_width}).transpose(1, 2);
  const at::Tensor key =
      at::cat({formed.narrow(-1, 0, layer.content_width), shared_key.expand({-1, heads, -1, -1})}, -1);
  AttentionOptions options = layer.options;
  options.recompute = options.recompute && !layer.recompute_up_projection;  // else it would run a third time
  return attend(at::cat({queries.content, queries.rotary}, -1), key,
                formed.narrow(-1, layer.content_width, value_width), options, context, layer.context_parallel);
}

/// Appends to the cache of a layer. Returns latents and shared keys of all tokens so far.
std::pair<at::Tensor, at::Tensor> remember(KeyValueCache& cache, std::size_t layer, const at::Tensor& latent,
                                           const at::Tensor& shared_key) {
  const KeyValueCache::Layer& own = cache.layers[layer];
  const std::int64_t tokens = latent.size(1), capacity = own.keys.size(2);
  PHAROS_CHECK(cache.length + tokens <= capacity, "key-value cache of " + std::to_string(capacity) + " tokens is full");
  own.keys.narrow(2, cache.length, tokens).copy_(latent.unsqueeze(1));
  own.values.narrow(2, cache.length, tokens).copy_(shared_key);
  return {own.keys.narrow(2, 0, cache.length + tokens), own.values.narrow(2, 0, cache.length + tokens)};
}

/// q·(W_k c + b_k) = (W_kᵀ q)·c + q·b_k and Σ p (W_v c + b_v) = W_v Σ p c + b_v: one head of keys and values, as wide
/// as the latent, serves all heads.
at::Tensor attend_to_latents(const LatentAttention& layer, const at::Tensor& source, const at::Tensor& latent,
                             const at::Tensor& shared_key, const RotaryAngles* angles, const ForwardContext& context,
                             std::size_t index) {
  const std::int64_t value_width = layer.options.width_of_values(), heads = layer.options.num_heads;
  const auto [latents, shared_keys] = remember(*context.cache, index, share(latent, layer.parallel), shared_key);
  const Queries queries = queries_of(layer, source, angles);
  const at::Tensor up =
      lasting_value(layer.linear_kv_up_proj.weight).view({heads, layer.content_width + value_width, layer.kv_rank});
  const at::Tensor key_up = up.narrow(1, 0, layer.content_width),
                   value_up = up.narrow(1, layer.content_width, value_width);
  std::vector<at::Tensor> query = {at::matmul(queries.content, key_up), queries.rotary};
  std::vector<at::Tensor> key = {latents, shared_keys};
  at::Tensor value_bias;
  if (layer.linear_kv_up_proj.bias) {
    const at::Tensor bias =
        lasting_value(*layer.linear_kv_up_proj.bias).view({heads, layer.content_width + value_width, 1});
    query.push_back(at::matmul(queries.content, bias.narrow(1, 0, layer.content_width)));
    key.push_back(at::ones({latents.size(0), 1, latents.size(2), 1}, latents.options()));
    value_bias = bias.narrow(1, layer.content_width, value_width).transpose(1, 2);
  }
  AttentionOptions options = layer.options;
  options.num_kv_heads = 1;
  options.scale = layer.options.score_scale();
  const at::Tensor mixed = core_attention(at::cat(query, -1), at::cat(key, -1), latents, options, context);
  const at::Tensor values = at::matmul(mixed, value_up.transpose(1, 2));
  return value_bias.defined() ? values + value_bias : values;
}

}  // namespace

at::Tensor LatentAttention::forward(const at::Tensor& hidden, const RotaryAngles* angles, const ForwardContext& context,
                                    std::size_t layer) const {
  at::Tensor source = hidden;
  if (linear_q_down_proj) {
    source = linear_q_down_proj->forward(hidden);
    if (q_layernorm) source = q_layernorm->forward(source);
  }
  const at::Tensor compressed = linear_kv_down_proj.forward(hidden);
  at::Tensor latent = compressed.narrow(-1, 0, kv_rank);
  if (kv_layernorm) latent = kv_layernorm->forward(latent);
  const at::Tensor shared = share(compressed.narrow(-1, kv_rank, rotary_width), parallel);
  const at::Tensor shared_key = rotate_heads(shared.unsqueeze(2), angles);
  at::Tensor mixed;
  if (context.cache != nullptr) {
    mixed = attend_to_latents(*this, source, latent, shared_key, angles, context, layer);
  } else {
    // By value: it may run again in the backward pass, long after this call.
    const std::optional<RotaryAngles> kept = angles != nullptr ? std::optional(*angles) : std::nullopt;
    const auto core = [this, kept, context](const std::vector<at::Tensor>& inputs) {
      return attend_to_formed(*this, inputs[0], inputs[1], inputs[2], kept ? &*kept : nullptr, context);
    };
    const bool forms_again = recompute_up_projection && c10::GradMode::is_enabled();
    mixed = forms_again ? recompute(core, {source, latent, shared_key}) : core({source, latent, shared_key});
  }
  return linear_proj.forward(mixed.transpose(1, 2).flatten(2));
}

}  // namespace pharos::nn
