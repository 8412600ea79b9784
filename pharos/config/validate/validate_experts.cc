// Rules of mixtures of experts (bridge-config.md 1.7 M1–M12, 8).
#include <algorithm>

#include "pharos/config/derived.h"
#include "pharos/config/flex_backend.h"
#include "pharos/config/validate/rule_checker.h"

namespace pharos::config {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

void check_routing(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t experts = *model.num_moe_experts;
  check.require(model.moe_router_topk <= experts, {"model.moe_router_topk", "model.num_moe_experts"},
                check.show("model.moe_router_topk") + " is more than " + check.show("model.num_moe_experts") + ".",
                "Use at most " + number(experts) + " for model.moe_router_topk.");
  check.require(model.moe_router_topk != 1 || model.moe_router_score_function != RouterScoreFunction::kSoftmax ||
                    model.moe_router_pre_softmax,
                {"model.moe_router_topk", "model.moe_router_pre_softmax"},
                "model.moe_router_topk = 1 with softmax scores needs model.moe_router_pre_softmax: a softmax over one "
                "score is always 1.",
                "Set model.moe_router_pre_softmax=true.");
  check.require(check.stored("model.moe_router_topk_limited_devices") == "null" || model.moe_router_group_topk,
                {"model.moe_router_topk_limited_devices", "model.moe_router_group_topk"},
                check.show("model.moe_router_topk_limited_devices") + " is the old name of group-limited routing.",
                "Set model.moe_router_group_topk=" + check.stored("model.moe_router_topk_limited_devices") +
                    " and model.moe_router_num_groups=" + number(model.expert_model_parallel_size) + " instead.");
  check.require(
      !model.moe_router_enable_expert_bias || model.moe_router_score_function != RouterScoreFunction::kSoftmax,
      {"model.moe_router_enable_expert_bias", "model.moe_router_score_function"},
      "model.moe_router_enable_expert_bias needs sigmoid or sqrtsoftplus scores.",
      "Set model.moe_router_score_function=sigmoid.");
  if (model.moe_router_num_groups) {
    check.require(
        experts % *model.moe_router_num_groups == 0, {"model.num_moe_experts", "model.moe_router_num_groups"},
        check.show("model.num_moe_experts") + " is not divisible by " + check.show("model.moe_router_num_groups") + ".",
        "Use " + divisors_text(experts) + " groups.");
  }
  if (!model.moe_router_group_topk) return;
  const std::int64_t group_topk = *model.moe_router_group_topk;
  check.require(model.moe_router_num_groups.has_value(), {"model.moe_router_group_topk", "model.moe_router_num_groups"},
                "model.moe_router_group_topk needs model.moe_router_num_groups.",
                "Set model.moe_router_num_groups, " + divisors_text(experts) + ".");
  check.require(
      !model.moe_router_num_groups || group_topk <= *model.moe_router_num_groups,
      {"model.moe_router_group_topk", "model.moe_router_num_groups"},
      check.show("model.moe_router_group_topk") + " is more than " + check.show("model.moe_router_num_groups") + ".",
      "Use at most the number of groups.");
  // Megatron's score of a group adds up topk / group_topk experts; the families' own have no such number.
  check.require(
      model.moe_router_group_score != RouterGroupScore::kSumOfTopk || model.moe_router_topk % group_topk == 0,
      {"model.moe_router_topk", "model.moe_router_group_topk"},
      check.show("model.moe_router_topk") + " is not divisible by " + check.show("model.moe_router_group_topk") + ".",
      "Use " + divisors_text(model.moe_router_topk) + " for model.moe_router_group_topk.");
  if (!model.moe_router_num_groups || experts % *model.moe_router_num_groups != 0) return;
  const std::int64_t width = experts / *model.moe_router_num_groups;
  const std::int64_t scored = model.moe_router_group_score == RouterGroupScore::kSumOfTwo ? 2
                              : model.moe_router_group_score == RouterGroupScore::kSumOfTopk
                                  ? model.moe_router_topk / group_topk
                                  : 1;
  check.require(group_topk * width >= model.moe_router_topk && width >= scored,
                {"model.moe_router_num_groups", "model.num_moe_experts", "model.moe_router_topk",
                 "model.moe_router_group_topk", "model.moe_router_group_score"},
                "Groups of " + number(width) + " experts are too small for " + check.show("model.moe_router_topk") +
                    " with " + check.show("model.moe_router_group_topk") + ".",
                "Use fewer groups.");
}

void check_widths_of_experts(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t width = moe_ffn_hidden_size_or_default(model),
                     ranks = expert_tensor_parallel_size_or_default(model);
  check.require(width % ranks == 0,
                {"model.moe_ffn_hidden_size", "model.ffn_hidden_size", "model.expert_tensor_parallel_size"},
                "The width of an expert, " + number(width) +
                    ", is not divisible by expert_tensor_parallel_size = " + number(ranks) + ".",
                "Use an ETP size of " + divisors_text(width) + ".");
  const std::int64_t shared = model.moe_shared_expert_intermediate_size.value_or(0);
  check.require(shared % model.tensor_model_parallel_size == 0,
                {"model.moe_shared_expert_intermediate_size", "model.tensor_model_parallel_size"},
                check.show("model.moe_shared_expert_intermediate_size") + " is not divisible by " +
                    check.show("model.tensor_model_parallel_size") + ".",
                "Use a TP size of " + divisors_text(shared) + ".");
}

void check_balancing(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const auto& types = model.moe_router_load_balancing_type;
  const auto has = [&](const char* type) { return std::find(types.begin(), types.end(), type) != types.end(); };
  const bool no_coefficient =
      std::all_of(model.moe_aux_loss_coeff.begin(), model.moe_aux_loss_coeff.end(), [](double c) { return c == 0; });
  check.require(types.size() == model.moe_aux_loss_coeff.size() || model.moe_aux_loss_coeff.size() == 1,
                {"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"},
                "model.moe_aux_loss_coeff has not one coefficient for each balancing type.",
                "Give one coefficient for all, or " + number(static_cast<std::int64_t>(types.size())) + ".");
  for (std::size_t i = 0; i < std::min(types.size(), model.moe_aux_loss_coeff.size()); ++i) {
    check.require(types.size() == 1 || types[i] != "none" || model.moe_aux_loss_coeff[i] == 0,
                  {"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"},
                  "model.moe_aux_loss_coeff has a coefficient for the balancing type none.", "Make it 0.");
  }
  check.require(!has("sinkhorn") || no_coefficient,
                {"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"},
                "Sinkhorn balancing needs model.moe_aux_loss_coeff = 0.", "Set model.moe_aux_loss_coeff=0.");
  check.require(
      !has("quantile_balancing") || (no_coefficient && !model.moe_router_num_groups),
      {"model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff", "model.moe_router_num_groups"},
      "Quantile balancing needs model.moe_aux_loss_coeff = 0 and no groups.",
      "Set model.moe_aux_loss_coeff=0 and model.moe_router_num_groups=null (model.moe_router_group_topk=null).");
  check.require(
      !has("quantile_balancing") || check.purpose() == Purpose::kPlan, {"model.moe_router_load_balancing_type"},
      "model.moe_router_load_balancing_type = quantile_balancing is a balancing this release cannot train with.",
      "Use aux_loss, seq_aux_loss or global_aux_loss with model.moe_aux_loss_coeff, or none with "
      "model.moe_router_enable_expert_bias=true; `pharos plan` accepts it.");
  const double factor = model.moe_expert_capacity_factor.value_or(-1);
  const bool has_capacity = factor >= 0;
  check.require(factor < 0 || factor > 0, {"model.moe_expert_capacity_factor"},
                check.show("model.moe_expert_capacity_factor") + " lets no expert take a token.",
                "Set it above 0, or negative to drop nothing.");
  check.require(!has_capacity || (!has("sinkhorn") && !has("quantile_balancing")),
                {"model.moe_expert_capacity_factor", "model.moe_router_load_balancing_type"},
                "model.moe_expert_capacity_factor works with aux_loss, seq_aux_loss, global_aux_loss or none only.",
                "Set model.moe_expert_capacity_factor=null.");
  check.require(!model.moe_pad_expert_input_to_capacity || has_capacity,
                {"model.moe_pad_expert_input_to_capacity", "model.moe_expert_capacity_factor"},
                "model.moe_pad_expert_input_to_capacity needs a capacity factor.",
                "Set model.moe_expert_capacity_factor.");
}

/// M7: biases of experts, each in one place only.
void check_biases(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool has_bias = model.add_mlp_bias.value_or(model.add_bias_linear);
  const std::string field = model.add_mlp_bias ? "model.add_mlp_bias" : "model.add_bias_linear";
  check.require(
      !has_bias || expert_tensor_parallel_size_or_default(model) == 1, {field, "model.expert_tensor_parallel_size"},
      field + " with experts needs an expert tensor parallel size of 1.", "Set model.expert_tensor_parallel_size=1.");
  check.require(!has_bias || !model.moe_shared_expert_intermediate_size,
                {field, "model.moe_shared_expert_intermediate_size"}, "Shared experts allow no bias.",
                "Set " + field + "=false.");
}

void check_flex(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool is_flex = model.moe_token_dispatcher_type == TokenDispatcher::kFlex;
  const FlexBackend backend = model.moe_flex_dispatcher_backend;
  const bool enables_deepep = check.stored("model.moe_enable_deepep") == "true";
  check.require(!enables_deepep || is_flex, {"model.moe_enable_deepep", "model.moe_token_dispatcher_type"},
                "model.moe_enable_deepep needs dispatcher flex.", "Set model.moe_token_dispatcher_type=flex.");
  check.require(
      !enables_deepep || backend == FlexBackend::kDeepEp,
      {"model.moe_enable_deepep", "model.moe_flex_dispatcher_backend"},
      "model.moe_enable_deepep names another back-end than " + check.show("model.moe_flex_dispatcher_backend") + ".",
      "Set model.moe_enable_deepep=false.");
  check.require(check.stored("model.moe_expert_rank_capacity_factor") == "null" ||
                    (is_flex && (backend == FlexBackend::kHybridEp || backend == FlexBackend::kNcclEp)),
                {"model.moe_expert_rank_capacity_factor", "model.moe_flex_dispatcher_backend"},
                "model.moe_expert_rank_capacity_factor needs backend hybridep or ncclep of dispatcher flex.",
                "Set model.moe_expert_rank_capacity_factor=null.");
  if (!is_flex || check.purpose() == Purpose::kPlan) return;
  const FlexBackendProblem problem = flex_backend_problem(backend);
  check.require(problem.empty(), {"model.moe_flex_dispatcher_backend", "model.moe_token_dispatcher_type"}, problem.what,
                problem.fix);
}

void check_dispatch(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool gathers = model.moe_token_dispatcher_type == TokenDispatcher::kAllGather;
  check.require(!model.moe_shared_expert_overlap || !gathers,
                {"model.moe_shared_expert_overlap", "model.moe_token_dispatcher_type"},
                "model.moe_shared_expert_overlap needs dispatcher alltoall or flex.",
                "Set model.moe_shared_expert_overlap=false or model.moe_token_dispatcher_type=alltoall.");
  check.require(!model.moe_shared_expert_overlap || model.moe_shared_expert_intermediate_size,
                {"model.moe_shared_expert_overlap", "model.moe_shared_expert_intermediate_size"},
                "model.moe_shared_expert_overlap needs shared experts.",
                "Set model.moe_shared_expert_overlap=false or model.moe_shared_expert_intermediate_size.");
  const auto& precision = check.config().mixed_precision;
  check.require(!model.moe_router_padding_for_quantization || (!gathers && (precision.fp8 || precision.fp4)),
                {"model.moe_router_padding_for_quantization", "model.moe_token_dispatcher_type"},
                "model.moe_router_padding_for_quantization needs fp8 or fp4 and a dispatcher other than allgather.",
                "Set model.moe_router_padding_for_quantization=false.");
  check.require(check.purpose() == Purpose::kPlan || model.tensor_model_parallel_size == 1 || model.sequence_parallel,
                {"model.sequence_parallel", "model.tensor_model_parallel_size"},
                "Training experts with tensor parallelism needs sequence parallelism.",
                "Set model.sequence_parallel=true.");
}

}  // namespace

void check_experts(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  if (!model.num_moe_experts) {
    check.require(model.expert_model_parallel_size == 1, {"model.expert_model_parallel_size", "model.num_moe_experts"},
                  check.show("model.expert_model_parallel_size") + " needs model.num_moe_experts.",
                  "Use 1 for a dense model.");
    return;
  }
  check.require(*model.num_moe_experts % model.expert_model_parallel_size == 0,
                {"model.num_moe_experts", "model.expert_model_parallel_size"},
                check.show("model.num_moe_experts") + " is not divisible by " +
                    check.show("model.expert_model_parallel_size") + ".",
                "Use an EP size of " + divisors_text(*model.num_moe_experts) + ".");
  check_routing(check);
  if (model.hidden_size) check_widths_of_experts(check);
  check_balancing(check);
  check_biases(check);
  check_flex(check);
  check_dispatch(check);
}

}  // namespace pharos::config
