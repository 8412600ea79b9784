// What one microbatch keeps on a stage of the pipeline between its actions, in bytes.
#pragma once

#include <cstdint>

#include "pharos/plan/activations.h"
#include "pharos/plan/stages.h"

namespace pharos::plan {

/// Layers recomputed together, as model::Transformer does it (bridge-config 1.6).
struct RecomputePlan {
  bool full = false;
  bool uniform = true;
  std::int64_t length = 1;  ///< layers of a unit (uniform), or recomputed layers of a chunk (block)

  /// The end of the unit of layers that starts with layer `begin` of a chunk of `num_layers`.
  std::int64_t unit_end(std::int64_t begin, std::int64_t num_layers) const;
  bool is_recomputed(std::int64_t layer_of_chunk) const { return full && (uniform || layer_of_chunk < length); }
};

RecomputePlan recompute_plan(const config::ModelConfig& model);

/// Work of a layer put off until the weight gradient holds, of each linear layer, the input and the gradient of the
/// output (nn::WeightGradientQueue).
struct Deferred {
  double attention = 0;
  double mlp = 0;
  double layer() const { return attention + mlp; }
};

/// All zero unless `defers`: the schedule has weight gradients of their own. `layer` as in kept_by_layer().
Deferred deferred_by_layer(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer, bool defers);

/// The same of the output layer, and of multi-token prediction.
struct DeferredHead {
  double inputs = 0;
  double logits = 0;  ///< their gradient
};

DeferredHead deferred_by_head(const config::ModelConfig& model, const LayerShape& shape, bool defers);

struct KeptByStage {
  double layers = 0;  ///< from the forward to the backward
  double head = 0;    ///< likewise: input and output of the last norm, multi-token prediction
  double logits = 0;  ///< likewise: log-probabilities
  /// Most bytes alive when a unit is recomputed: what the units up to it keep, the unit, and what those behind it,
  /// which have been through their backward pass, put off. 0 without recomputation.
  double while_recomputing = 0;
  bool ends_with_recomputation = false;
  double deferred_layers = 0;  ///< from the backward to the weight gradient
  double deferred_head = 0;
  double deferred_logits = 0;

  double until_backward() const { return layers + head + logits; }
  double until_weight() const { return deferred_layers + deferred_head + deferred_logits; }
};

KeptByStage kept_by_stage(const config::ModelConfig& model, const LayerShape& shape, const ModelChunk& chunk,
                          bool defers);

}  // namespace pharos::plan
