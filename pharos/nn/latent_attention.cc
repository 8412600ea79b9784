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

/// [batch, tokens, heads, width] -> [batch, heads, tokens, width], from `first` on turned by position if there are
/// angles.
at::Tensor rotate_heads(const at::Tensor& input, const RotaryAngles* angles, std::int64_t first) {
  return angles != nullptr ? apply_rotary(input, *angles, first) : input.transpose(1, 2);
}

/// Queries of this rank's heads: [batch, heads, tokens, content + rotary width].
at::Tensor queries_of(const LatentAttention& layer, const at::Tensor& source, const RotaryAngles* angles) {
  const at::Tensor projected = (layer.linear_q_proj ? *layer.linear_q_proj : *layer.linear_q_up_proj).forward(source);
  const at::Tensor heads = projected.unflatten(-1, {layer.options.num_heads, layer.content_width + layer.rotary_width});
  return rotate_heads(heads, angles, layer.content_width);
}

/// What the up-projection gives, [batch, tokens, heads, content + value width], with the rotated key that all heads
/// share, [batch, 1, tokens, rotary width], as keys [batch, heads, tokens, content + rotary width] and values. One node
/// of the graph, so that no gradient is filled with zeros and added up.
struct FormKeysAndValues : torch::autograd::Function<FormKeysAndValues> {
  static variable_list forward(AutogradContext* context, const at::Tensor& formed, const at::Tensor& shared_key,
                               std::int64_t content_width) {
    const std::int64_t rotary_width = shared_key.size(-1);
    context->saved_data["content_width"] = content_width;
    const at::Tensor by_head = formed.transpose(1, 2);
    const at::Tensor key =
        at::empty({by_head.size(0), by_head.size(1), by_head.size(2), content_width + rotary_width}, formed.options());
    key.narrow(-1, 0, content_width).copy_(by_head.narrow(-1, 0, content_width));
    key.narrow(-1, content_width, rotary_width).copy_(shared_key);
    return {key, by_head.narrow(-1, content_width, by_head.size(-1) - content_width).contiguous()};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::int64_t content_width = context->saved_data["content_width"].toInt();
    const at::Tensor key = gradients[0].transpose(1, 2), value = gradients[1].transpose(1, 2);
    const at::Tensor formed =
        at::empty({key.size(0), key.size(1), key.size(2), content_width + value.size(-1)}, key.options());
    formed.narrow(-1, 0, content_width).copy_(key.narrow(-1, 0, content_width));
    formed.narrow(-1, content_width, value.size(-1)).copy_(value);
    return {formed, key.narrow(-1, content_width, key.size(-1) - content_width).sum(2, true).transpose(1, 2), {}};
  }
};

/// Keys and values formed from the latents. source: what queries come from, [batch, tokens, …]; latent: [batch, tokens,
/// kv rank], under sequence parallelism both of this rank's tokens; shared_key: [batch, 1, tokens, rotary width], of
/// all tokens. Returns [batch, heads, tokens, value width].
at::Tensor attend_to_formed(const LatentAttention& layer, const at::Tensor& source, const at::Tensor& latent,
                            const at::Tensor& shared_key, const RotaryAngles* angles, const ForwardContext& context) {
  const std::int64_t value_width = layer.options.width_of_values(), heads = layer.options.num_heads;
  const at::Tensor query = queries_of(layer, source, angles);
  const at::Tensor formed =
      layer.linear_kv_up_proj.forward(latent).unflatten(-1, {heads, layer.content_width + value_width});
  const auto keys_and_values = FormKeysAndValues::apply(formed, shared_key, layer.content_width);
  AttentionOptions options = layer.options;
  options.recompute = options.recompute && !layer.recompute_up_projection;  // else it would run a third time
  return attend(query, keys_and_values[0], keys_and_values[1], options, context, layer.context_parallel);
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
  const at::Tensor queries = queries_of(layer, source, angles);
  const at::Tensor content = queries.narrow(-1, 0, layer.content_width);
  const at::Tensor up =
      lasting_value(layer.linear_kv_up_proj.weight).view({heads, layer.content_width + value_width, layer.kv_rank});
  const at::Tensor key_up = up.narrow(1, 0, layer.content_width),
                   value_up = up.narrow(1, layer.content_width, value_width);
  std::vector<at::Tensor> query = {at::matmul(content, key_up),
                                   queries.narrow(-1, layer.content_width, layer.rotary_width)};
  std::vector<at::Tensor> key = {latents, shared_keys};
  at::Tensor value_bias;
  if (layer.linear_kv_up_proj.bias) {
    const at::Tensor bias =
        lasting_value(*layer.linear_kv_up_proj.bias).view({heads, layer.content_width + value_width, 1});
    query.push_back(at::matmul(content, bias.narrow(1, 0, layer.content_width)));
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
  const auto parts = compressed.split_with_sizes({kv_rank, rotary_width}, -1);
  const at::Tensor latent = kv_layernorm ? kv_layernorm->forward(parts[0]) : parts[0];
  const at::Tensor shared = share(parts[1], parallel);
  const at::Tensor shared_key = rotate_heads(shared.unsqueeze(2), angles, 0);
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
