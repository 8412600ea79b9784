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
  at::Tensor attention_mask;      ///< undefined, or bool [batch, 1, tokens, tokens], true where attention is allowed
  std::int64_t first_sample = 0;  ///< place of the first sample in the global batch
};

}  // namespace pharos::train
