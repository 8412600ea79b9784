#include "pharos/plan/layers/latent.h"

#include <algorithm>

#include "pharos/plan/layers/common.h"

namespace pharos::plan {

using config::ModelConfig;

namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

/// Queries, keys, values and what the core keeps of its result, in elements a token of all tokens.
double kept_by_core(const ModelConfig& model, const LayerShape& shape, const LatentWidths& widths, std::int64_t layer) {
  if (recomputes(model, "mla_up_proj")) return widths.shared_key;
  const double inputs = 2 * widths.query + widths.padded_value;
  if (recomputes_core_attention(model)) return 2 * widths.query + widths.value;
  // Where the result lies by token, it is the input of the output projection, which is counted for itself.
  const bool has_result = shape.context == 1 && is_fused(model) && !has_causal_kernel(model, shape, layer);
  return inputs + (has_result ? widths.padded_value : 0);
}

}  // namespace

LatentWidths latent_widths(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  LatentWidths widths;
  const double head = real(model.qk_head_dim + model.qk_pos_emb_head_dim);
  widths.query = shape.heads * head;
  widths.value = shape.heads * real(model.v_head_dim);
  const bool pads = shape.device == config::DeviceKind::kCpu && is_fused(model) && shape.context == 1 &&
                    !has_causal_kernel(model, shape, layer);
  widths.padded_value = pads ? std::max(widths.query, widths.value) : widths.value;
  widths.formed = shape.heads * real(model.qk_head_dim + model.v_head_dim);
  widths.query_source = model.q_lora_rank ? real(*model.q_lora_rank) : shape.hidden;
  widths.kv_rank = real(model.kv_lora_rank);
  widths.shared_key = real(model.qk_pos_emb_head_dim);
  return widths;
}

double kept_by_latent_attention(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  const LatentWidths widths = latent_widths(model, shape, layer);
  const double norms = model.qk_layernorm ? 2 : 1;  // a norm keeps its input, and the next layer its result
  const double num_statistics = 1 + (model.qk_layernorm ? (model.q_lora_rank ? 2 : 1) : 0);
  double latents = widths.kv_rank * norms + (model.qk_layernorm ? 0 : widths.shared_key);
  if (model.q_lora_rank) latents += widths.query_source * norms;
  const double stream_tokens = shape.stream_tokens(), tokens = shape.tokens();
  double bytes = num_statistics * norm_statistics(model, stream_tokens);
  bytes += stream_tokens * (shape.hidden + latents) * shape.element_bytes;
  bytes += tokens * (kept_by_core(model, shape, widths, layer) + widths.value) * shape.element_bytes;
  if (recomputes(model, "mla_up_proj") || recomputes_core_attention(model)) return bytes;
  if (!is_fused(model) && shape.context == 1) return bytes + kept_probabilities(model, shape);
  return bytes + tokens * shape.heads * kFloatBytes;  // log of the softmax's sums
}

double latent_backward_bytes(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  const LatentWidths widths = latent_widths(model, shape, layer);
  const double token_bytes = shape.tokens() * shape.element_bytes;
  // Gradients of the result, of queries, keys and values; and of what was formed and projected, of the stream.
  double core = token_bytes * (2 * widths.query + 2 * widths.padded_value);
  if (shape.context > 1) core += shape.tokens() * kFloatBytes * (widths.query + 4 * (widths.query + widths.value));
  if (!is_fused(model)) core += score_gradient_bytes(model, shape);
  if (recomputes(model, "mla_up_proj")) core += token_bytes * (2 * widths.query + widths.formed + widths.padded_value);
  const double projections = token_bytes * (widths.query + widths.formed + 2 * shape.hidden);
  return std::max(core, projections);
}

double deferred_by_latent_attention(const ModelConfig& model, const LayerShape& shape) {
  const LatentWidths widths = latent_widths(model, shape, 0);
  double of_stream = shape.hidden + 2 * widths.kv_rank + widths.shared_key;  // inputs, and the gradient of the latents
  if (model.q_lora_rank) of_stream += 2 * widths.query_source;
  const double of_all = widths.query + widths.formed + widths.value + shape.hidden;
  return shape.stream_tokens() * of_stream + shape.tokens() * of_all;
}

}  // namespace pharos::plan
