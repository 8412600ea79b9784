// Multi-head latent attention (DeepSeek-V2, 2024): keys and values come from one compressed vector a token, positions
// from a rotated part of its own that all heads share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "pharos/nn/attention.h"
#include "pharos/nn/context.h"
#include "pharos/nn/context_parallel/context_parallel.h"
#include "pharos/nn/linear.h"
#include "pharos/nn/norm.h"
#include "pharos/nn/parallel/linear.h"
#include "pharos/nn/rotary.h"

namespace pharos::nn {

struct LatentAttention {
  /// Queries from the hidden state ([heads (content + rotary) / ranks, hidden]) …
  std::optional<ColumnLinear> linear_q_proj;
  /// … or through a latent: down [q rank, hidden] (whole on every rank), norm, up [heads (content + rotary) / ranks,
  /// q rank].
  std::optional<Linear> linear_q_down_proj;
  std::optional<Norm> q_layernorm;
  std::optional<ColumnLinear> linear_q_up_proj;

  Linear linear_kv_down_proj;        ///< [kv rank + rotary width, hidden], whole on every rank
  std::optional<Norm> kv_layernorm;  ///< [kv rank]
  ColumnLinear linear_kv_up_proj;    ///< [heads (content + value) / ranks, kv rank], per head keys, then values
  RowLinear linear_proj;             ///< [hidden, heads value / ranks]
  AttentionOptions options;          ///< head_width = content + rotary width; value_width
  std::int64_t content_width = 0;    ///< of a head without rotation (qk_head_dim)
  std::int64_t rotary_width = 0;     ///< qk_pos_emb_head_dim
  std::int64_t kv_rank = 0;
  /// Queries, keys and values are formed again in the backward pass, and with them the core runs again.
  bool recompute_up_projection = false;
  TensorParallel parallel = {};
  ContextParallel context_parallel = {};

  /// hidden: [batch, tokens, hidden], under sequence parallelism this rank's tokens -> the same shape; `angles` are
  /// those of all tokens of its context-parallel rank, null without rotation; `layer` indexes the cache. With a cache
  /// keys and values are never formed: queries are taken into the latent space instead (the absorbed form).
  at::Tensor forward(const at::Tensor& hidden, const RotaryAngles* angles, const ForwardContext& context,
                     std::size_t layer) const;
};

}  // namespace pharos::nn
