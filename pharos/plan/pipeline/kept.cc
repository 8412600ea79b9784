#include "pharos/plan/pipeline/kept.h"

#include <algorithm>

#include "pharos/config/derived.h"

namespace pharos::plan {

using config::ModelConfig;

namespace {

constexpr double kFloatBytes = 4;

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

Deferred deferred_work(const ModelConfig& model, const LayerShape& shape, bool defers) {
  if (!defers) return {};
  const double size = shape.element_bytes, tokens = shape.tokens();
  // Column-parallel layers hold their tokens of the input, row-parallel ones the output gradient of all tokens and,
  // for a bias, their own.
  const double stream = shape.stream_tokens() * shape.hidden * size;
  const double row_grad = tokens * shape.hidden * size + (model.add_bias_linear && shape.parts > 1 ? stream : 0);
  const double qkv_grad = tokens * (shape.query_width() + 2 * shape.kv_width()) * size;
  const double inner = tokens * shape.inner * size;
  return {.attention = stream + qkv_grad + tokens * shape.query_width() * size + row_grad,
          .mlp = stream + (model.gated_linear_unit ? 2 : 1) * inner + inner + row_grad,
          .head = stream,
          .logits = logit_elements(model, shape) * size};
}

KeptByStage kept_by_stage(const ModelConfig& model, const LayerShape& shape, const ModelChunk& chunk, bool defers) {
  const RecomputePlan recompute = recompute_plan(model);
  const Deferred deferred = deferred_work(model, shape, defers);
  KeptByStage kept;
  for (std::int64_t begin = 0; begin < chunk.num_layers;) {
    const bool is_unit = recompute.is_recomputed(begin);
    const std::int64_t end = recompute.unit_end(begin, chunk.num_layers);
    double unit = 0;
    for (std::int64_t i = begin; i < end; ++i) unit += kept_by_layer(model, shape, chunk.first_layer + i).total();
    kept.layers += is_unit ? kept_by_layer(model, shape, chunk.first_layer + begin).input : unit;
    kept.ends_with_recomputation = is_unit;
    // The unit's input is there already; its output, of the same size, comes once more.
    const double behind = static_cast<double>(chunk.num_layers - end) * deferred.layer();
    if (is_unit) kept.while_recomputing = std::max(kept.while_recomputing, kept.layers + unit + behind);
    begin = end;
  }
  kept.deferred_layers = static_cast<double>(chunk.num_layers) * deferred.layer();
  if (chunk.output) {
    kept.head = kept_by_head(model, shape);
    kept.logits = logit_elements(model, shape) * kFloatBytes;
    kept.deferred_head = deferred.head;
    kept.deferred_logits = deferred.logits;
  }
  return kept;
}

}  // namespace pharos::plan
