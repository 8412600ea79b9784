// Attention over a sequence whose tokens are divided over context-parallel ranks: exact, by blocks whose results are
// combined with their log-sum-exp (Liu et al. 2023; Dao et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include "pharos/nn/attention.h"
#include "pharos/nn/context_parallel/context_parallel.h"

namespace pharos::nn {

/// core_attention() of the whole sequence, of this rank's queries. query: [batch, heads, tokens, width], key: [batch,
/// kv heads, tokens, width] and value: [batch, kv heads, tokens, value width] are those of this rank's tokens in zigzag
/// order. For the backward pass a rank keeps these, the output and one number a query (log of the softmax's sum);
/// scores exist for one half-block at a time. The softmax is always taken in float32. sinks: float32 [heads] or
/// undefined; the ranks' gradients of it are summands. Returns [batch, heads, tokens, value width], laid out by token.
at::Tensor context_parallel_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      const AttentionOptions& options, const ForwardContext& context,
                                      const ContextParallel& parallel, const at::Tensor& sinks = {});

}  // namespace pharos::nn
