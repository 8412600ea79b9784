// Bytes that multi-latent attention keeps and needs (nn::LatentAttention; change one with the other).
#pragma once

#include "pharos/config/model_config.h"
#include "pharos/plan/activations.h"

namespace pharos::plan {

/// Elements a token, on this rank.
struct LatentWidths {
  double query = 0;  ///< of all heads, and of their keys
  double value = 0;
  double padded_value = 0;  ///< values as the kernel takes them, and its result: ATen's of a CPU wants the keys' width
  double formed = 0;        ///< keys without rotation, and values, in one tensor
  double query_source = 0;  ///< what queries are projected from
  double kv_rank = 0;
  double shared_key = 0;  ///< the rotated part of keys, one for all heads
};

LatentWidths latent_widths(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);

double kept_by_latent_attention(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);
/// Most bytes alive in its backward pass beside everything kept and the gradient of the layer's output.
double latent_backward_bytes(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);
/// Elements that its linear layers put off until the weight gradient (nn::WeightGradientQueue).
double deferred_by_latent_attention(const config::ModelConfig& model, const LayerShape& shape);

}  // namespace pharos::plan
