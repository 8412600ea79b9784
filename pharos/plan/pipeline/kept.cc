#include "pharos/plan/pipeline/kept.h"

#include <algorithm>

#include "pharos/config/derived.h"
#include "pharos/plan/layers/common.h"
#include "pharos/plan/layers/experts.h"
#include "pharos/plan/layers/latent.h"

namespace pharos::plan {

using config::ModelConfig;

namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

double logit_elements(const ModelConfig& model, const LayerShape& shape) {
  return shape.tokens() * static_cast<double>(config::padded_vocab_size(model)) /
         static_cast<double>(model.tensor_model_parallel_size);
}

}  // namespace

std::int64_t RecomputePlan::unit_end(std::int64_t begin, std::int64_t num_layers) const {
  return full && uniform ? std::min(num_layers, begin + length) : begin + 1;
}

RecomputePlan recompute_plan(const ModelConfig& model) {
  return {model.recompute_granularity == config::RecomputeGranularity::kFull,
          model.recompute_method != config::RecomputeMethod::kBlock, model.recompute_num_layers.value_or(1)};
}

Deferred deferred_by_layer(const ModelConfig& model, const LayerShape& shape, std::int64_t layer, bool defers) {
  if (!defers) return {};
  const double size = shape.element_bytes, tokens = shape.tokens();
  // Column-parallel layers hold their tokens of the input, row-parallel ones the output gradient of all tokens and,
  // for a bias, their own.
  const double stream = shape.stream_tokens() * shape.hidden * size;
  const double row_grad = tokens * shape.hidden * size + (model.add_bias_linear && shape.parts > 1 ? stream : 0);
  const double qkv_grad = tokens * (shape.query_width() + 2 * shape.kv_width()) * size;
  const double inner = tokens * shape.inner * size;
  Deferred deferred{.attention = stream + qkv_grad + tokens * shape.query_width() * size + row_grad,
                    .mlp = stream + (model.gated_linear_unit ? 2 : 1) * inner + inner + row_grad};
  if (model.multi_latent_attention) deferred.attention = deferred_by_latent_attention(model, shape) * size;
  if (has_experts(model, layer)) deferred.mlp = stream + deferred_by_experts(model, shape) * size;
  return deferred;
}

DeferredHead deferred_by_head(const ModelConfig& model, const LayerShape& shape, bool defers) {
  if (!defers) return {};
  const double stream = shape.stream_tokens() * shape.hidden * shape.element_bytes;
  const auto depth = real(model.mtp_num_layers.value_or(0));
  DeferredHead head{(1 + depth) * stream, (1 + depth) * logit_elements(model, shape) * shape.element_bytes};
  for (std::int64_t i = 0; i < model.mtp_num_layers.value_or(0); ++i)
    head.inputs += 3 * stream + deferred_by_layer(model, shape, *model.num_layers + i, true).layer();
  return head;
}

KeptByStage kept_by_stage(const ModelConfig& model, const LayerShape& shape, const ModelChunk& chunk, bool defers) {
  const RecomputePlan recompute = recompute_plan(model);
  const auto deferred = [&](std::int64_t begin, std::int64_t end) {
    double bytes = 0;
    for (std::int64_t i = begin; i < end; ++i)
      bytes += deferred_by_layer(model, shape, chunk.first_layer + i, defers).layer();
    return bytes;
  };
  KeptByStage kept;
  for (std::int64_t begin = 0; begin < chunk.num_layers;) {
    const bool is_unit = recompute.is_recomputed(begin);
    const std::int64_t end = recompute.unit_end(begin, chunk.num_layers);
    double unit = 0;
    for (std::int64_t i = begin; i < end; ++i) unit += kept_by_layer(model, shape, chunk.first_layer + i).total();
    kept.layers += is_unit ? kept_by_layer(model, shape, chunk.first_layer + begin).input : unit;
    kept.ends_with_recomputation = is_unit;
    // The unit's input is there already; its output, of the same size, comes once more.
    if (is_unit)
      kept.while_recomputing = std::max(kept.while_recomputing, kept.layers + unit + deferred(end, chunk.num_layers));
    begin = end;
  }
  kept.deferred_layers = deferred(0, chunk.num_layers);
  if (!chunk.output) return kept;
  const double passes = 1 + real(chunk.num_prediction_layers);
  kept.head = kept_by_head(model, shape);
  for (std::int64_t i = 0; i < chunk.num_prediction_layers; ++i) kept.head += kept_by_prediction_layer(model, shape, i);
  kept.logits =
      passes * logit_elements(model, shape) * (kFloatBytes + (model.final_logit_softcapping ? shape.element_bytes : 0));
  const DeferredHead head = deferred_by_head(model, shape, defers);
  kept.deferred_head = head.inputs;
  kept.deferred_logits = head.logits;
  return kept;
}

}  // namespace pharos::plan
