// Token and learned position embeddings.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "pharos/nn/context.h"
#include "pharos/nn/parallel/tensor_parallel.h"
#include "pharos/tensor/parameter.h"

namespace pharos::nn {

/// Rows of `weight` [entries, width] for `indices` (int64, any shape) -> [..., width]; the gradient is added to
/// main_grad.
at::Tensor embed(const at::Tensor& indices, const tensor::Parameter& weight);

/// The same from a table divided by rows: `weight` [entries / ranks, width] holds those of this rank. indices: int64
/// [batch, tokens] -> [batch, tokens, width], under sequence parallelism this rank's tokens.
at::Tensor embed_vocabulary(const at::Tensor& indices, const tensor::Parameter& weight, const TensorParallel& parallel);

struct Embedding {
  tensor::Parameter words;                     ///< [padded vocabulary / ranks, hidden]
  std::optional<tensor::Parameter> positions;  ///< [max positions, hidden]
  double dropout = 0;
  double scale = 1;  ///< the embeddings of words are multiplied by it
  TensorParallel parallel;
  ContextParallel context_parallel = {};

  /// tokens: int64 [batch, tokens] -> [batch, tokens, hidden], under sequence parallelism this rank's tokens.
  at::Tensor forward(const at::Tensor& tokens, const ForwardContext& context) const;
};

}  // namespace pharos::nn
