#include "pharos/plan/layers/experts.h"

#include <algorithm>
#include <cmath>

#include "pharos/config/derived.h"
#include "pharos/plan/layers/common.h"

namespace pharos::plan {

using config::ModelConfig;

namespace {

constexpr double kIndexBytes = 8;

double real(std::int64_t value) { return static_cast<double>(value); }

/// Ranks that a token's topk different experts lie on, in the mean over all choices: N (1 - C(E - E/N, k) / C(E, k)).
double ranks_of_a_token(double experts, double ranks, double topk) {
  double none = 1;  // chance that a rank has none of them
  for (double i = 0; i < topk; ++i) none *= std::max(0.0, experts - experts / ranks - i) / (experts - i);
  return ranks * (1 - none);
}

double gates(const ModelConfig& model) { return model.gated_linear_unit ? 2 : 1; }

/// fp32 tensors of [tokens, experts] that routing keeps: scores; sums of normalised ones; exponentials of the z loss.
double kept_score_tensors(const ModelConfig& model) {
  const auto& types = model.moe_router_load_balancing_type;
  const bool balances = std::any_of(types.begin(), types.end(), [](const auto& type) { return type != "none"; });
  const bool is_softmax = model.moe_router_score_function == config::RouterScoreFunction::kSoftmax;
  const bool has_scores = balances || !is_softmax || model.moe_router_pre_softmax;
  return (has_scores ? 1 : 0) + (balances && !is_softmax ? 1 : 0) + (model.moe_z_loss_coeff.value_or(0) != 0 ? 1 : 0);
}

double kept_by_router(const ModelConfig& model, const ExpertShape& experts) {
  return experts.tokens * (kept_score_tensors(model) * experts.num_experts * kFloatBytes +
                           experts.topk * (2 * kIndexBytes + kFloatBytes));
}

double kept_by_shared(const ModelConfig& model, const LayerShape& shape, const ExpertShape& experts) {
  if (experts.shared_width == 0 || recomputes(model, "shared_experts")) return 0;
  double bytes = shape.tokens() * experts.shared_width * kept_inner_tensors(model) * shape.element_bytes;
  if (model.moe_shared_expert_gate) bytes += experts.tokens * shape.hidden * shape.element_bytes;  // their output
  return bytes;
}

}  // namespace

ExpertShape expert_shape(const ModelConfig& model, const LayerShape& shape) {
  ExpertShape experts;
  const double tensor = real(config::expert_tensor_parallel_size_or_default(model));
  const double parts = real(model.expert_model_parallel_size);
  experts.tokens = shape.stream_tokens();
  experts.num_experts = real(*model.num_moe_experts);
  experts.topk = real(model.moe_router_topk);
  experts.ranks = tensor * parts;
  experts.width = real(config::moe_ffn_hidden_size_or_default(model)) / tensor;
  experts.shared_width =
      real(model.moe_shared_expert_intermediate_size.value_or(0)) / real(model.tensor_model_parallel_size);
  const double choices = experts.tokens * experts.topk, local = experts.num_experts / parts;
  experts.rows = choices * tensor;
  if (shape.balance == RoutingBalance::kWorst)
    experts.rows = experts.tokens * experts.ranks * std::min(experts.topk, local);
  if (const double factor = model.moe_expert_capacity_factor.value_or(-1); factor >= 0) {
    const double most =
        local * experts.ranks * std::min(experts.tokens, std::ceil(choices / experts.num_experts * factor));
    experts.rows = model.moe_pad_expert_input_to_capacity ? most : std::min(most, experts.rows);
  }
  experts.token_rows = model.moe_token_dispatcher_type == config::TokenDispatcher::kFlex
                           ? experts.tokens * ranks_of_a_token(experts.num_experts, parts, experts.topk) * tensor
                           : choices;
  return experts;
}

double kept_by_experts(const ModelConfig& model, const LayerShape& shape) {
  const ExpertShape experts = expert_shape(model, shape);
  double inner = kept_inner_tensors(model) + (is_swiglu(model) ? 0 : 1);  // else the product before the probability
  if (recomputes(model, "moe_act")) inner = gates(model);
  double bytes = experts.rows * (shape.hidden + experts.width * inner) * shape.element_bytes;
  bytes += experts.rows * (kFloatBytes + kIndexBytes * (experts.ranks > 1 ? 4 : 2));  // probabilities, permutations
  if (model.moe_input_jitter_eps.value_or(0) > 0) bytes += experts.tokens * shape.hidden * shape.element_bytes;
  return bytes + kept_by_router(model, experts) + kept_by_shared(model, shape, experts);
}

double experts_backward_bytes(const ModelConfig& model, const LayerShape& shape) {
  const ExpertShape experts = expert_shape(model, shape);
  // Gradients of the rows, as they came and in the order of experts, and three tensors of the inner width.
  const double rows = experts.rows * (experts.ranks > 1 ? 2 : 1) * shape.hidden;
  const double inner = experts.rows * experts.width * (1 + gates(model));
  double bytes = (rows + inner) * shape.element_bytes;
  if (recomputes(model, "moe_act")) bytes += experts.rows * experts.width * shape.element_bytes;
  if (recomputes(model, "moe") || recomputes(model, "mlp")) bytes += kept_by_experts(model, shape);
  return bytes;
}

double experts_forward_bytes(const ModelConfig& model, const LayerShape& shape) {
  const ExpertShape experts = expert_shape(model, shape);
  return experts.rows * (2 * shape.hidden + (1 + gates(model)) * experts.width) * shape.element_bytes +
         kept_by_router(model, experts);
}

double deferred_by_experts(const ModelConfig& model, const LayerShape& shape) {
  const ExpertShape experts = expert_shape(model, shape);
  const double routed = experts.rows * (2 * shape.hidden + (1 + gates(model)) * experts.width);
  const double shared =
      experts.shared_width > 0 ? shape.tokens() * (shape.hidden + (1 + gates(model)) * experts.shared_width) : 0;
  return routed + shared + experts.tokens * (shape.hidden + experts.num_experts);
}

}  // namespace pharos::plan
