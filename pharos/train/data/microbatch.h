// Samples as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pharos::train {

struct Microbatch {
  at::Tensor tokens;              ///< int64 [batch, tokens]
  at::Tensor labels;              ///< int64 [batch, tokens]
  at::Tensor loss_mask;           ///< float32 [batch, tokens]
  at::Tensor positions;           ///< int64 [tokens], or [batch, tokens] when documents restart their positions
  at::Tensor segments;            ///< undefined, or int64 [batch, tokens of the whole sequence]: number of the document
  at::Tensor num_loss_tokens;     ///< float32 scalar: sum of loss_mask over the whole sequences
  std::int64_t first_sample = 0;  ///< place of the first sample in the global batch
};

}  // namespace pharos::train
