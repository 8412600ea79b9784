// Bytes that a mixture of experts keeps and needs (pharos/nn/moe; change one with the other).
#pragma once

#include "pharos/config/model_config.h"
#include "pharos/plan/activations.h"

namespace pharos::plan {

/// Of one layer and microbatch on one rank.
struct ExpertShape {
  double tokens = 0;  ///< that this rank sends to experts
  double rows = 0;    ///< that its experts work on, by shape.balance
  double width = 0;   ///< of an expert, on this rank
  double shared_width = 0;
  double num_experts = 0;  ///< of the layer
  double topk = 0;
  double ranks = 1;  ///< between which experts are divided, ETP x EP
  double token_rows =
      0;  ///< copies of this rank's tokens that travel: one a choice, or with dispatcher flex one a rank
};

ExpertShape expert_shape(const config::ModelConfig& model, const LayerShape& shape);

/// Beside the normalised input.
double kept_by_experts(const config::ModelConfig& model, const LayerShape& shape);
/// Most bytes alive in the backward pass beside everything kept and the gradient of the layer's output.
double experts_backward_bytes(const config::ModelConfig& model, const LayerShape& shape);
/// Most bytes alive in a forward pass that keeps nothing.
double experts_forward_bytes(const config::ModelConfig& model, const LayerShape& shape);
/// Elements that their linear layers put off until the weight gradient (nn::WeightGradientQueue).
double deferred_by_experts(const config::ModelConfig& model, const LayerShape& shape);

}  // namespace pharos::plan
