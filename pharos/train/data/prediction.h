// What multi-token prediction learns from a microbatch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "pharos/model/transformer.h"
#include "pharos/train/data/microbatch.h"

namespace pharos::train {

/// Of one depth, on one context-parallel rank.
struct Prediction {
  model::PredictionInput input;
  at::Tensor loss_mask;        ///< float32 [batch, tokens]
  at::Tensor num_loss_tokens;  ///< float32 scalar: its sum over the whole sequences
};

/// Depths k = 1 … num_depths: at the place of token t of `whole`, tokens, labels and loss_mask of t + k, and nothing to
/// learn at the last k of a sequence; then, like slice_context(), the tokens of rank `rank` of `size`.
std::vector<Prediction> predictions_of(const Microbatch& whole, std::int64_t num_depths, std::int64_t rank,
                                       std::int64_t size);

}  // namespace pharos::train
