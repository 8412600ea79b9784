// Which experts a token goes to, and with what weight (bridge-config.md 8.2-8.4).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/enums.h"
#include "pharos/nn/context.h"
#include "pharos/nn/moe/load.h"
#include "pharos/nn/parallel/tensor_parallel.h"
#include "pharos/tensor/parameter.h"

namespace pharos::nn {

struct RouterOptions {
  std::int64_t num_experts = 0;
  std::int64_t topk = 2;
  config::RouterScoreFunction score_function = config::RouterScoreFunction::kSoftmax;
  bool pre_softmax = false;                ///< softmax over all experts before the choice, not over the chosen ones
  std::optional<bool> norm_topk_prob;      ///< divide the chosen scores by their sum; unset: Megatron's rule
  std::optional<double> scaling_factor;    ///< on the chosen scores
  std::optional<std::int64_t> num_groups;  ///< group-limited routing
  std::optional<std::int64_t> group_topk;
  config::RouterGroupScore group_score = config::RouterGroupScore::kSumOfTopk;
  std::optional<at::ScalarType> dtype;  ///< of logits; unset: that of the input
  std::optional<double> jitter;  ///< in training the input is multiplied with values from [1 - jitter, 1 + jitter]
  std::optional<double> z_loss_coeff;
  struct Balancing {
    std::string type;  ///< "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn"
    double coeff = 0;
  };
  std::vector<Balancing> balancing = {};  ///< equations in routing/balance.h
  std::optional<double> capacity_factor;  ///< tokens beyond this share of the mean are dropped; unset: none
  config::TokenDropPolicy drop_policy = config::TokenDropPolicy::kProbabilities;
  bool force_balance = false;  ///< random logits (benchmarks)
  /// Standard deviation of random values added to the experts' logits, new in each step; negative: the same in all
  /// steps (benchmarks).
  std::optional<double> force_biased;
  /// The loss is a sum over tokens: auxiliary losses are multiplied by the number of tokens of the microbatch.
  bool calculates_per_token_loss = false;
  std::string name;  ///< of random streams
};

/// Of one microbatch's tokens on this rank, [batch * tokens] in that order.
struct Routing {
  at::Tensor experts;                    ///< int64 [tokens, topk]; -1: dropped
  at::Tensor probabilities;              ///< [tokens, topk], differentiable; 0 where dropped
  std::optional<std::int64_t> capacity;  ///< most rows of an expert from this rank, with a capacity factor
};

struct Router {
  /// [experts, hidden], whole on every rank. Ranks that divide the tokens of a microbatch each add the gradient of
  /// theirs to main_grad.
  tensor::Parameter weight;
  std::optional<tensor::Parameter> bias;  ///< [experts]
  /// fp32 [experts], not trainable: added to scores for the choice only, moved once a step by update_expert_bias().
  std::optional<tensor::Parameter> expert_bias;
  RouterOptions options;
  TensorParallel parallel = {};
  ContextParallel context_parallel = {};
  /// Ranks that divide the tokens of a microbatch into equal numbers: TP × CP; null: this one.
  comm::Group* tokens_group = nullptr;
  comm::Group* balance_group = nullptr;  ///< TP × DP × CP, for global_aux_loss; null: this one

  /// hidden: [batch, tokens, hidden] of this rank. In training auxiliary losses (routing/balance.h), scaled by
  /// context.auxiliary_loss_scale, enter the gradients that come back through `probabilities`, and outside of
  /// recomputation `load`. With a group, aux_loss, seq_aux_loss, global_aux_loss and sinkhorn need all its ranks here.
  Routing route(const at::Tensor& hidden, const ForwardContext& context, RouterLoad& load) const;
};

/// bias += rate · sign(mean of counts - counts). tokens_per_expert: [experts], over all tokens of a global batch.
void update_expert_bias(tensor::Parameter& expert_bias, const at::Tensor& tokens_per_expert, double rate);

}  // namespace pharos::nn
