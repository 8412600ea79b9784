// Losses that keep the experts of a router equally busy (bridge-config.md 8.3).
//
// Tokens t of the B sequences b of a microbatch are divided over the R ranks of a group, each with an equal number.
// With E experts, k choices a token, p_te the score of expert e for token t, c_e how many tokens have e among the k
// highest scores (groups, bias and capacity do not matter here), T = all tokens of the microbatch, S = T / B:
//
//   aux_loss         coeff · E / (k T²) · Σ_e c_e Σ_t p_te                    (Fedus et al. 2022)
//   seq_aux_loss     coeff · E / (k S²) · Σ_e c_be Σ_{t in b} p_te, mean over b  (DeepSeek-AI 2024)
//   global_aux_loss  coeff · E / (k T G) · Σ_e g_e Σ_t p_te                    (Qiu et al. 2025)
//   z_loss           coeff / T · Σ_t (log Σ_e exp l_te)²                       (Zoph et al. 2022)
//
// g_e are the counts of the microbatches at hand on all ranks (data-parallel ones too) and of the earlier ones of this
// step, averaged over the number of microbatches, and G all tokens of such a microbatch. Megatron divides by G² there,
// which makes the loss weaker the more data-parallel ranks there are; here it means the same in every layout.
//
// Counts are summed over the group, scores are those of this rank. So each rank has a share of the loss, the shares of
// the R ranks sum to the loss of the microbatch, and gradients of a rank's tokens are those of the whole loss. They are
// multiplied by ForwardContext::auxiliary_loss_scale and, where what is minimised is a sum over tokens, by T.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "pharos/nn/moe/router.h"

namespace pharos::nn {

/// p of the losses: softmax(l), or scores of other functions divided by their sum over all experts. scores: what
/// expert_scores() gives, [tokens, experts].
at::Tensor balanced_scores(const at::Tensor& scores, config::RouterScoreFunction function);

/// How often each expert occurs in the rows [batch * tokens, topk] of each sequence: float64 [batch, experts].
at::Tensor count_choices(const at::Tensor& experts, std::int64_t num_experts, std::int64_t batch);

/// This rank's share of coeff · E / (k · tokens · counted) · Σ_e counts_e Σ_t p_te, float64 scalar: all four sums above
/// but the last. score_sums: Σ_t p_te of this rank, [B, experts]; counts: float64 [B or 1, experts] out of `counted`
/// tokens per row.
at::Tensor balance_loss(const at::Tensor& score_sums, const at::Tensor& counts, double coeff, std::int64_t topk,
                        double tokens, double counted);

/// This rank's share of the z loss, float64 scalar. logits: [tokens, experts] of this rank; `tokens`: of all ranks.
at::Tensor z_loss(const at::Tensor& logits, double coeff, double tokens);

/// `carrier` itself; in the backward pass the scalar `loss` gets the gradient `scale`.
at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double scale);

/// Of one microbatch on this rank.
struct BalanceInput {
  at::Tensor logits;        ///< [batch * tokens, experts]
  at::Tensor scores;        ///< balanced_scores(), the same shape
  at::Tensor experts;       ///< int64 [batch * tokens, topk]: the highest of the scores
  std::int64_t batch = 1;   ///< sequences
  std::int64_t sample = 0;  ///< the first of them in the global batch
};

/// Sum over the router's losses, this rank's share; undefined when it has none. Every rank of the router's groups must
/// call it. Outside of recomputation the losses are added to `load`.
at::Tensor auxiliary_loss(const Router& router, const BalanceInput& input, RouterLoad& load);

/// Whether auxiliary_loss() has something to do; with_scores: beside the z loss.
bool has_auxiliary_loss(const RouterOptions& options, bool with_scores);

}  // namespace pharos::nn
