// Scores of the experts, and which of them a token goes to (bridge-config.md 8.2). No weights, no ranks: rows in, rows
// out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pharos/comm/group.h"
#include "pharos/config/enums.h"
#include "pharos/nn/moe/router.h"

namespace pharos::nn {

/// softmax(l), σ(l) or √softplus(l) of logits [tokens, experts], in float32; float64 for float64 logits.
at::Tensor expert_scores(const at::Tensor& logits, config::RouterScoreFunction function);

/// Indices of the `topk` largest scores of each row, largest first (on the CPU the earlier of equal ones in float32 and
/// float64): [tokens, topk] int64. scores: [tokens, experts].
at::Tensor top_experts(const at::Tensor& scores, std::int64_t topk);

/// scores with -inf for the experts outside of the group_topk best groups; experts are divided into num_groups equal
/// runs. The score of a group is the sum of its best topk / group_topk scores (Megatron), its best one (DeepSeek-V2) or
/// the sum of its best two (DeepSeek-V3). DeepSeek-V2 sets the others to 0, which chooses the same experts: its scores
/// are positive.
at::Tensor limit_to_groups(const at::Tensor& scores, const RouterOptions& options);

/// The choice of every token and its weights. `scores`: expert_scores(logits), may be undefined for softmax after the
/// choice; expert_bias: undefined, or float32 [experts]. Weights, before the scaling factor:
///   softmax after the choice: softmax over the chosen logits (it sums to 1 already, so norm_topk_prob adds nothing);
///   softmax before it:        the scores, divided by their sum if norm_topk_prob;
///   sigmoid, √softplus:       the scores without bias, divided by their sum + 1e-20 if norm_topk_prob, which unset
///                             means topk > 1.
/// Experts are in falling order of what they were chosen by; no capacity.
Routing choose_experts(const at::Tensor& logits, const at::Tensor& scores, const at::Tensor& expert_bias,
                       const RouterOptions& options);

/// exp(logits) with rows and columns scaled in turn until rows sum to 1 / tokens and columns to 1 / experts (Sinkhorn's
/// algorithm), to a mean change of column factors of 1e-4. logits: [tokens, experts] of this rank; tokens are those of
/// all ranks of `group` (null: this one). Waits for the device in every iteration.
at::Tensor sinkhorn(const at::Tensor& logits, comm::Group* group);

/// Balanced choice: in training the largest of sinkhorn(logits), else of the logits. Weights: σ(logits) for topk = 1,
/// else softmax(logits) over all experts, at the chosen ones.
Routing choose_by_sinkhorn(const at::Tensor& logits, std::int64_t topk, bool training, comm::Group* group);

}  // namespace pharos::nn
