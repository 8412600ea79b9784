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

  double score_scale() const;
  std::int64_t width_of_values() const { return value_width > 0 ? value_width : head_width; }
};

/// softmax(cap(q kᵀ scale) + mask) v. query: [batch, heads, tokens, width]; key: [batch, kv heads, key tokens, width];
/// value: [batch, kv heads, key tokens, value width]. Query i sees keys up to i + (key tokens - tokens), and with
/// segments in `context` those of its own segment (tokens and keys are the whole sequence then). `sinks` [heads],
/// unless undefined, is one more logit a head, with a value of zero; it is neither scaled nor capped. Returns [batch,
/// heads, tokens, value width]. Dropout, a cap and sinks form scores.
at::Tensor core_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const AttentionOptions& options, const ForwardContext& context, const at::Tensor& sinks = {});

/// core_attention() of the whole sequence, whose tokens may be divided over context-parallel ranks, run again in the
/// backward pass where options.recompute says so.
at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const AttentionOptions& options, const ForwardContext& context, const ContextParallel& parallel,
                  const at::Tensor& sinks = {});

/// [batch, heads, tokens, width] -> [batch, heads * times, tokens, width], each head `times` times in a row.
at::Tensor repeat_heads(const at::Tensor& tensor, std::int64_t times);

/// Zeros behind the last axis up to `width`: they change neither scores nor the values before them. The fused kernels
/// of CPUs want queries, keys and values of one width. Returns `tensor` itself when it is as wide.
at::Tensor pad_width(const at::Tensor& tensor, std::int64_t width);

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
