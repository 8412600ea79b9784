#include "pharos/plan/activations.h"

#include <algorithm>

#include "pharos/config/derived.h"
#include "pharos/model/flops.h"
#include "pharos/plan/layers/common.h"
#include "pharos/plan/layers/experts.h"
#include "pharos/plan/layers/latent.h"

namespace pharos::plan {
namespace {

using config::Activation;
using config::ModelConfig;

bool is_rotary(const ModelConfig& model) {
  return model.position_embedding_type == config::PositionEmbedding::kRope ||
         model.position_embedding_type == config::PositionEmbedding::kYarn;
}

/// Of the scores that exist at a time: with several context ranks those of a quarter of a rank's queries and keys.
double score_elements(const LayerShape& shape) {
  const double length = shape.context > 1 ? shape.length / 2 : shape.length;
  return shape.batch * shape.heads * length * length;
}

/// Queries, keys and values as the core keeps them, in elements a token.
double kept_query_key_value(const ModelConfig& model, const LayerShape& shape, bool fused) {
  const double query = shape.query_width(), kv = shape.kv_width();
  const bool repeats = shape.kv_heads < shape.heads && !recomputes_core_attention(model);
  const double fused_projection = query + 2 * kv;  // values (and without rotation all three) are views of it
  const double key_value = repeats ? 2 * query : 0;
  if (shape.context > 1 && !recomputes_core_attention(model)) {
    // Keys and values are kept as the block that is exchanged; unrotated queries are a view of the projection.
    return (is_rotary(model) ? query : fused_projection) + 2 * kv;
  }
  if (recomputes_core_attention(model) || fused) {
    const double rotated = is_rotary(model) ? query + (repeats ? 0 : kv) : 0;
    return rotated + key_value + (repeats && is_rotary(model) ? 0 : fused_projection);
  }
  // Matrix products keep contiguous copies; rotated queries and keys and repeated heads are contiguous already.
  return query + (repeats ? key_value : 2 * kv);
}

double kept_by_attention(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  const double tokens = shape.tokens(), size = shape.element_bytes;
  const bool fused = is_fused(model), recomputes = recomputes_core_attention(model);
  // The normalised input of qkv: column-parallel layers keep this rank's tokens only.
  double bytes = norm_statistics(model, shape.stream_tokens()) + shape.stream_tokens() * shape.hidden * size;
  if (model.qk_layernorm) {
    bytes += tokens * (shape.query_width() + shape.kv_width()) * size;  // the norms' inputs, made contiguous
    bytes += norm_statistics(model, tokens * (shape.heads + shape.kv_heads));
  }
  bytes += tokens * kept_query_key_value(model, shape, fused) * size;
  bytes += tokens * shape.query_width() * size;  // input of the output projection
  if (recomputes) return bytes;
  // What the output projection keeps is the core's result itself; with it goes the log of the softmax's sums.
  if (shape.context > 1) return bytes + tokens * shape.heads * kFloatBytes;
  if (!fused) return bytes + kept_probabilities(model, shape);
  bytes += tokens * shape.heads * kFloatBytes;  // log of the softmax's sums
  // ATen's kernels lay their result out like the queries. Rotated ones are ordered by head, so that the output
  // projection keeps a copy ordered by token beside what the kernel keeps.
  if (is_rotary(model) && !has_causal_kernel(model, shape, layer)) bytes += tokens * shape.query_width() * size;
  if (model::attention_window(model, layer) > 0) bytes += shape.length * shape.length * size;  // mask
  return bytes;
}

/// All of the dense MLP, or of router and experts, is computed again (model::TransformerLayer::recompute_mlp).
bool recomputes_mlp(const ModelConfig& model) { return recomputes(model, "mlp") || recomputes(model, "moe"); }

double whole_stream_bytes(const LayerShape& shape) { return shape.tokens() * shape.hidden * shape.element_bytes; }
double stream_bytes(const LayerShape& shape) { return whole_stream_bytes(shape) / shape.parts; }

/// In the backward pass of a column-parallel layer: its input gradient; with divided tokens also the input gathered
/// again and this rank's part of the gradient (nn/parallel/linear.cc). Tokens of several sequences are put in order by
/// a copy.
double column_backward_bytes(const LayerShape& shape) {
  if (shape.parts == 1) return whole_stream_bytes(shape);
  return (shape.batch > 1 ? 3 : 2) * whole_stream_bytes(shape) + stream_bytes(shape);
}

/// In that of a row-parallel layer: its input gradient of `input_bytes`, and with divided tokens the gathered output
/// gradient.
double row_backward_bytes(const LayerShape& shape, double input_bytes) {
  if (shape.parts == 1) return input_bytes;
  return whole_stream_bytes(shape) + std::max(input_bytes, shape.batch > 1 ? whole_stream_bytes(shape) : 0);
}

}  // namespace

bool recomputes(const ModelConfig& model, const char* module) {
  if (model.recompute_granularity != config::RecomputeGranularity::kSelective) return false;
  const std::vector<std::string> modules = model.recompute_modules.value_or(std::vector<std::string>{"core_attn"});
  return std::find(modules.begin(), modules.end(), module) != modules.end();
}

bool is_fused(const ModelConfig& model) {
  return model.attention_dropout == 0 && model.attention_backend != config::AttentionBackend::kUnfused &&
         model.attention_backend != config::AttentionBackend::kLocal && !model.attn_logit_softcapping &&
         model.softmax_type == config::SoftmaxType::kVanilla;
}

bool has_causal_kernel(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  return shape.device == config::DeviceKind::kCpu && shape.element_bytes == kFloatBytes && shape.context == 1 &&
         is_fused(model) && model::attention_window(model, layer) == 0;
}

double norm_statistics(const ModelConfig& model, double rows) {
  return rows * kFloatBytes * (model.normalization == config::Normalization::kRmsNorm ? 1 : 2);
}

double kept_probabilities(const ModelConfig& model, const LayerShape& shape) {
  const double scores = score_elements(shape);
  double bytes = shape.length * shape.length;  // masked_fill keeps its mask
  bytes += scores * (model.attention_softmax_in_fp32 ? kFloatBytes : shape.element_bytes);  // softmax keeps its result
  if (model.attention_dropout > 0 || (model.attention_softmax_in_fp32 && shape.element_bytes < kFloatBytes)) {
    bytes += scores * shape.element_bytes;  // what the second product keeps is another tensor then
  }
  if (model.attn_logit_softcapping) bytes += scores * shape.element_bytes;  // the hyperbolic tangent keeps its result
  return bytes;
}

double score_gradient_bytes(const ModelConfig& model, const LayerShape& shape) {
  const double score_bytes = model.attention_softmax_in_fp32 ? kFloatBytes : shape.element_bytes;
  double bytes = score_elements(shape) * (score_bytes + shape.element_bytes);
  if (model.attention_dropout > 0) bytes += score_elements(shape) * shape.element_bytes;  // the mask, drawn again
  if (recomputes_core_attention(model) && shape.context == 1) bytes += kept_probabilities(model, shape);
  return bytes;
}

bool is_swiglu(const ModelConfig& model) {
  return model.gated_linear_unit && model.activation_func == Activation::kSilu && !model.activation_func_clamp_value &&
         model.glu_linear_offset == 0;
}

double kept_inner_tensors(const ModelConfig& model) {
  if (!model.gated_linear_unit) {
    switch (model.activation_func) {
      case Activation::kRelu:
      case Activation::kSigmoid:
      case Activation::kTanh:
        return 1;
      case Activation::kQuickGelu:
        return 3;
      default:
        return 2;
    }
  }
  if (is_swiglu(model)) return 3;
  const double more =
      model.activation_func == Activation::kQuickGelu || model.activation_func == Activation::kSquaredRelu;
  return 5 + more + (model.activation_func_clamp_value ? 1 : 0);
}

bool recomputes_core_attention(const ModelConfig& model) { return recomputes(model, "core_attn"); }

bool has_experts(const ModelConfig& model, std::int64_t layer) {
  return config::is_moe_layer(model, std::min(layer, *model.num_layers - 1));
}

LayerShape layer_shape(const ModelConfig& model, std::int64_t micro_batch_size, config::DeviceKind device) {
  const auto tensor = static_cast<double>(model.tensor_model_parallel_size);
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  LayerShape shape;
  shape.batch = real(micro_batch_size);
  shape.length = real(model.seq_length) / real(model.context_parallel_size);
  shape.hidden = real(*model.hidden_size);
  shape.heads = real(*model.num_attention_heads) / tensor;
  shape.kv_heads = std::max(1.0, real(config::num_query_groups_or_default(model)) / tensor);
  shape.head_width = real(config::kv_channels_or_default(model));
  shape.inner = real(config::ffn_hidden_size_or_default(model)) / tensor;
  shape.element_bytes = config::compute_dtype(model) == config::DType::kFloat32 ? 4 : 2;
  shape.parts = model.sequence_parallel ? tensor : 1;
  shape.context = real(model.context_parallel_size);
  shape.device = device;
  return shape;
}

LayerShape layer_shape(const config::RunConfig& config) {
  return layer_shape(config.model, *config.train.micro_batch_size, config.dist.device);
}

KeptByLayer kept_by_layer(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  const double size = shape.element_bytes, stream = stream_bytes(shape);
  const double statistics = norm_statistics(model, shape.stream_tokens());
  KeptByLayer kept;
  kept.input = stream;
  kept.attention = model.multi_latent_attention ? kept_by_latent_attention(model, shape, layer)
                                                : kept_by_attention(model, shape, layer);
  kept.mlp = 2 * stream + statistics;  // with the normalised input
  if (has_experts(model, layer)) {
    if (!recomputes_mlp(model)) kept.mlp += kept_by_experts(model, shape);
  } else if (!recomputes_mlp(model)) {
    kept.mlp += shape.tokens() * shape.inner * kept_inner_tensors(model) * size;
  }
  if (model.sandwich_layernorm) {
    kept.attention += stream + statistics;
    kept.mlp += stream + statistics;
  }
  return kept;
}

double kept_by_prediction_layer(const ModelConfig& model, const LayerShape& shape, std::int64_t depth) {
  const double stream = stream_bytes(shape), statistics = norm_statistics(model, shape.stream_tokens());
  if (model.recompute_granularity == config::RecomputeGranularity::kFull)
    return 3 * stream + statistics + stream;  // hidden state and words; input and output of the last norm
  // Words that were looked up and both halves of the projection's input; the layer; input and output of the last norm.
  return stream + 2 * statistics + 2 * stream + kept_by_layer(model, shape, *model.num_layers + depth).total() +
         2 * stream + statistics;
}

double mlp_backward_bytes(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  if (has_experts(model, layer)) return stream_bytes(shape) + experts_backward_bytes(model, shape);
  const double inner = shape.tokens() * shape.inner * shape.element_bytes;
  // The activation's backward pass: its incoming gradient, its result, and for gates one temporary; the second
  // product's input is freed by then.
  const double activation = (model.gated_linear_unit ? 3 : 1) * inner;
  const double row = row_backward_bytes(shape, inner);
  const double column = column_backward_bytes(shape) - inner;  // more of what the activation kept is freed than needed
  const double again = recomputes_mlp(model) ? inner * kept_inner_tensors(model) : 0;
  return stream_bytes(shape) + again + std::max({activation, row, column});
}

double attention_backward_bytes(const ModelConfig& model, const LayerShape& shape, std::int64_t layer) {
  if (model.multi_latent_attention) return stream_bytes(shape) + latent_backward_bytes(model, shape, layer);
  const double query = shape.query_width(), kv = shape.kv_width(), token_bytes = shape.tokens() * shape.element_bytes;
  const double key_value = shape.kv_heads < shape.heads ? 2 * query : 2 * kv;
  double core = token_bytes * (query + query + key_value);
  if (shape.context > 1) {
    // fp32 gradients of queries and of four blocks (own, at work, coming and going), and two blocks.
    core = token_bytes * (query + 4 * kv) + shape.tokens() * kFloatBytes * (query + 8 * kv);
  }
  if (!is_fused(model)) core += score_gradient_bytes(model, shape);
  const double row = row_backward_bytes(shape, token_bytes * query);
  // The gradient of q|k|v; what the core and the output projection kept of it is freed.
  const double freed = query + kept_query_key_value(model, shape, is_fused(model));
  const double column = column_backward_bytes(shape) + token_bytes * (query + 2 * kv - freed);
  return stream_bytes(shape) + std::max({core, row, column});
}

double layer_forward_bytes(const ModelConfig& model, const LayerShape& shape) {
  const double inner = model.gated_linear_unit ? 3 : 2;
  // Two tensors of the stream; a third of all tokens comes from, or goes to, the other ranks.
  const double streams = 2 * stream_bytes(shape) + (shape.parts > 1 ? whole_stream_bytes(shape) : 0);
  double mlp = inner * shape.tokens() * shape.inner * shape.element_bytes;
  if (model.num_moe_experts) mlp = std::max(mlp, experts_forward_bytes(model, shape));
  double query = shape.query_width(), key = shape.kv_width(), value = shape.kv_width();
  if (model.multi_latent_attention) {
    const LatentWidths widths = latent_widths(model, shape, 0);
    query = key = widths.query;
    value = widths.padded_value + widths.formed / 2;  // beside what they were formed as
  }
  const double scores = is_fused(model) ? 0 : 2 * score_elements(shape) * kFloatBytes;
  double attention = shape.tokens() * (2 * query + 1.5 * (key + value)) * shape.element_bytes;
  if (shape.context > 1) {  // the sum over blocks and a half-block's result in fp32, two blocks of keys and values
    attention += shape.tokens() * (1.5 * query * kFloatBytes + 2 * (key + value) * shape.element_bytes);
  }
  return streams + std::max(mlp, attention + scores);
}

double kept_by_head(const ModelConfig& model, const LayerShape& shape) {
  return norm_statistics(model, shape.stream_tokens()) + 2 * stream_bytes(shape);
}

double logits_bytes(const ModelConfig& model, const LayerShape& shape) {
  const double width =
      static_cast<double>(config::padded_vocab_size(model)) / static_cast<double>(model.tensor_model_parallel_size);
  // fp32 logits are overwritten by log-probabilities and by their gradient; others have an fp32 tensor beside them.
  const double bytes = shape.element_bytes < kFloatBytes ? shape.element_bytes + kFloatBytes : kFloatBytes;
  return shape.tokens() * width * bytes;
}

double output_backward_bytes(const ModelConfig& model, const LayerShape& shape) {
  double bytes = column_backward_bytes(shape);
  if (shape.element_bytes < kFloatBytes) {  // the weight gradient before it is added to the fp32 one
    bytes += shape.hidden * static_cast<double>(config::padded_vocab_size(model)) /
             static_cast<double>(model.tensor_model_parallel_size) * shape.element_bytes;
  }
  return bytes;
}

}  // namespace pharos::plan
