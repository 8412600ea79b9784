// Causal self-attention with grouped queries, optional norms on queries and keys, rotary positions, sliding window and
// a key-value cache for generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "pharos/nn/context.h"
#include "pharos/nn/context_parallel/context_parallel.h"
#include "pharos/nn/norm.h"
#include "pharos/nn/parallel/linear.h"
#include "pharos/nn/rotary.h"

namespace pharos::nn {

struct AttentionOptions {
  std::int64_t num_heads = 0;     ///< query heads on this rank
  std::int64_t num_kv_heads = 0;  ///< key and value heads on this rank; divides num_heads
  std::int64_t head_width = 0;    ///< of queries and keys
  std::int64_t value_width = 0;   ///< of values; 0: head_width
  std::optional<double> scale;    ///< of the scores; unset: 1 / sqrt(head_width)
  std::optional<double> softcap;  ///< scores become c tanh(score / c)
  double dropout = 0;
  std::int64_t window = 0;      ///< 0: all earlier tokens, else only the last `window` ones, the token itself included
  bool fused = true;            ///< may use a fused kernel; else scores are formed and kept
  bool softmax_in_fp32 = true;  ///< for the unfused form
  bool recompute = false;       ///< run the core again in the backward pass instead of keeping its intermediates
  std::int64_t first_head = 0;  ///< global index of this rank's first query head (dropout)
  std::int64_t num_global_heads = 0;
  std::string name;  ///< of the dropout stream
};

/// softmax(cap(q kᵀ scale) + mask) v. query: [batch, heads, tokens, width]; key, value: [batch, kv heads,
/// key tokens, width]. Query i sees keys up to i + (key tokens - tokens), and with segments in `context` those of its
/// own segment (tokens and keys are the whole sequence then). Returns [batch, heads, tokens, width].
at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const AttentionOptions& options, const ForwardContext& context);

/// [batch, heads, tokens, width] -> [batch, heads * times, tokens, width], each head `times` times in a row.
at::Tensor repeat_heads(const at::Tensor& tensor, std::int64_t times);

struct SelfAttention {
  ColumnLinear qkv;                              ///< rows: this rank's queries, then keys, then values
  std::optional<Norm> q_layernorm, k_layernorm;  ///< per head, [head_width]
  RowLinear linear_proj;
  AttentionOptions options;
  ContextParallel context_parallel = {};
  /// Attention sinks [heads / ranks]: a logit per head that takes part in the softmax and gives nothing. With a
  /// constant (softmax off by one) it is not trainable.
  std::optional<tensor::Parameter> sinks = {};

  /// hidden: [batch, tokens, hidden], under sequence parallelism this rank's tokens; `angles` are those of all tokens
  /// of its context-parallel rank, null without rotary positions; `layer` indexes the cache.
  at::Tensor forward(const at::Tensor& hidden, const RotaryAngles* angles, const ForwardContext& context,
                     std::size_t layer) const;
};

}  // namespace pharos::nn
