// Token and learned position embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "pharos/nn/context.h"
#include "pharos/tensor/parameter.h"

namespace pharos::nn {

/// Rows of `weight` [entries, width] for `indices` (int64, any shape) -> [..., width]; the gradient is added to
/// main_grad.
at::Tensor embed(const at::Tensor& indices, const tensor::Parameter& weight);

struct Embedding {
  tensor::Parameter words;                     ///< [padded vocabulary, hidden]
  std::optional<tensor::Parameter> positions;  ///< [max positions, hidden]
  double dropout = 0;

  /// tokens: int64 [batch, tokens] -> [batch, tokens, hidden].
  at::Tensor forward(const at::Tensor& tokens, const ForwardContext& context) const;
};

}  // namespace pharos::nn
