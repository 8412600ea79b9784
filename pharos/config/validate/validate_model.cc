// Rules of the model's geometry, recomputation and experts (bridge-config.md 1.4, 1.6, 1.7 M1–M12).
#include <algorithm>
#include <set>

#include "pharos/config/derived.h"
#include "pharos/config/validate/rule_checker.h"

namespace pharos::config {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

void check_heads(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t heads = *model.num_attention_heads, tensor = model.tensor_model_parallel_size;
  check.require(heads % tensor == 0, {"model.num_attention_heads", "model.tensor_model_parallel_size"},
                check.show("model.num_attention_heads") + " is not divisible by " +
                    check.show("model.tensor_model_parallel_size") + ".",
                "Use a TP size of " + divisors_text(heads) + ".");
  check.require(
      model.kv_channels || *model.hidden_size % heads == 0, {"model.hidden_size", "model.num_attention_heads"},
      check.show("model.hidden_size") + " is not divisible by " + check.show("model.num_attention_heads") + ".",
      "Set model.kv_channels, or use a number of heads that divides the width.");
  const std::int64_t groups = num_query_groups_or_default(model);
  check.require(
      heads % groups == 0, {"model.num_attention_heads", "model.num_query_groups"},
      check.show("model.num_attention_heads") + " is not divisible by " + check.show("model.num_query_groups") + ".",
      "Use " + divisors_text(heads) + " query groups.");
  check.require(groups % tensor == 0 || tensor % groups == 0,
                {"model.num_query_groups", "model.tensor_model_parallel_size"},
                "model.num_query_groups = " + number(groups) + " is neither a multiple nor a divisor of " +
                    check.show("model.tensor_model_parallel_size") + ".",
                "Use a TP size of " + divisors_text(groups) + ".");
}

void check_positions(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool rotary = model.position_embedding_type == PositionEmbedding::kRope ||
                      model.position_embedding_type == PositionEmbedding::kYarn;
  if (rotary) {
    const auto rotated =
        static_cast<std::int64_t>(static_cast<double>(kv_channels_or_default(model)) * model.rotary_percent);
    check.require(rotated >= 2 && rotated % 2 == 0, {"model.kv_channels", "model.rotary_percent", "model.hidden_size"},
                  "The rotated width of a head is " + number(rotated) + ", which is not a positive even number.",
                  "Choose model.kv_channels × model.rotary_percent even.");
  }
  if (model.rope_scaling) {
    check.require(model.rope_scaling_high_freq_factor > model.rope_scaling_low_freq_factor,
                  {"model.rope_scaling_high_freq_factor", "model.rope_scaling_low_freq_factor"},
                  check.show("model.rope_scaling_high_freq_factor") + " is not above " +
                      check.show("model.rope_scaling_low_freq_factor") + ".");
  }
  if (model.position_embedding_type == PositionEmbedding::kYarn) {
    check.require(model.yarn_rotary_scaling_factor && model.yarn_original_max_position_embeddings,
                  {"model.position_embedding_type", "model.yarn_rotary_scaling_factor",
                   "model.yarn_original_max_position_embeddings"},
                  "position_embedding_type yarn needs model.yarn_rotary_scaling_factor and "
                  "model.yarn_original_max_position_embeddings.",
                  "Set both.");
    if (check.purpose() == Purpose::kTrain) {
      check.fail({"model.position_embedding_type"},
                 "model.position_embedding_type = yarn needs YaRN positions, which this release cannot train with.",
                 "Use rope.");
    }
  }
}

void check_widths(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t tensor = model.tensor_model_parallel_size;
  check.require(ffn_hidden_size_or_default(model) % tensor == 0,
                {"model.ffn_hidden_size", "model.tensor_model_parallel_size"},
                "model.ffn_hidden_size = " + number(ffn_hidden_size_or_default(model)) + " is not divisible by " +
                    check.show("model.tensor_model_parallel_size") + ".",
                "Use a TP size of " + divisors_text(ffn_hidden_size_or_default(model)) + ".");
  if (model.vocab_size) {
    check.require(
        padded_vocab_size(model) % tensor == 0, {"model.vocab_size", "model.tensor_model_parallel_size"},
        check.show("model.vocab_size") + " is not divisible by " + check.show("model.tensor_model_parallel_size") + ".",
        "Set model.should_pad_vocab=true.");
  }
  if (model.window_size) {
    check.require(model.window_size->size() == 2, {"model.window_size"},
                  check.show("model.window_size") + " is not [left, right].");
  }
  const auto check_pattern = [&](const std::string& field, const IntegerOrList& pattern, bool binary) {
    if (const auto* frequency = std::get_if<std::int64_t>(&pattern)) {
      check.require(*frequency >= 1, {field}, check.show(field) + " is less than 1.");
      return;
    }
    const auto& list = std::get<std::vector<std::int64_t>>(pattern);
    check.require(list.size() == static_cast<std::size_t>(*model.num_layers), {field, "model.num_layers"},
                  check.show(field) + " has " + std::to_string(list.size()) + " entries, not one for each of " +
                      number(*model.num_layers) + " layers.");
    const bool valid =
        std::all_of(list.begin(), list.end(), [](std::int64_t entry) { return entry == 0 || entry == 1; });
    check.require(!binary || valid, {field}, check.show(field) + " has entries other than 0 and 1.");
  };
  check_pattern("model.moe_layer_freq", model.moe_layer_freq, true);
  if (model.window_attn_skip_freq) check_pattern("model.window_attn_skip_freq", *model.window_attn_skip_freq, true);
}

void check_routing(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::int64_t experts = *model.num_moe_experts;
  check.require(model.moe_router_topk <= experts, {"model.moe_router_topk", "model.num_moe_experts"},
                check.show("model.moe_router_topk") + " is more than " + check.show("model.num_moe_experts") + ".");
  check.require(model.moe_router_topk != 1 || model.moe_router_score_function != RouterScoreFunction::kSoftmax ||
                    model.moe_router_pre_softmax,
                {"model.moe_router_topk", "model.moe_router_pre_softmax"},
                "model.moe_router_topk = 1 with softmax scores needs model.moe_router_pre_softmax: a softmax over one "
                "score is always 1.",
                "Set model.moe_router_pre_softmax=true.");
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
                "model.moe_router_group_topk needs model.moe_router_num_groups.");
  check.require(
      !model.moe_router_num_groups || group_topk <= *model.moe_router_num_groups,
      {"model.moe_router_group_topk", "model.moe_router_num_groups"},
      check.show("model.moe_router_group_topk") + " is more than " + check.show("model.moe_router_num_groups") + ".");
  check.require(
      model.moe_router_topk % group_topk == 0, {"model.moe_router_topk", "model.moe_router_group_topk"},
      check.show("model.moe_router_topk") + " is not divisible by " + check.show("model.moe_router_group_topk") + ".");
}

void check_balancing(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const auto& types = model.moe_router_load_balancing_type;
  const auto has = [&](const char* type) { return std::find(types.begin(), types.end(), type) != types.end(); };
  const bool no_coefficient =
      std::all_of(model.moe_aux_loss_coeff.begin(), model.moe_aux_loss_coeff.end(), [](double c) { return c == 0; });
  check.require(types.size() == model.moe_aux_loss_coeff.size() || model.moe_aux_loss_coeff.size() == 1,
                {"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"},
                "model.moe_aux_loss_coeff has not one coefficient for each balancing type.");
  check.require(!has("sinkhorn") || no_coefficient,
                {"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"},
                "Sinkhorn balancing needs model.moe_aux_loss_coeff = 0.");
  check.require(!has("quantile_balancing") || (no_coefficient && !model.moe_router_num_groups),
                {"model.moe_router_load_balancing_type", "model.moe_aux_loss_coeff", "model.moe_router_num_groups"},
                "Quantile balancing needs model.moe_aux_loss_coeff = 0 and no groups.");
  const bool has_capacity = model.moe_expert_capacity_factor.value_or(-1) >= 0;
  check.require(!has_capacity || (!has("sinkhorn") && !has("quantile_balancing")),
                {"model.moe_expert_capacity_factor", "model.moe_router_load_balancing_type"},
                "model.moe_expert_capacity_factor works with aux_loss, seq_aux_loss, global_aux_loss or none only.");
  check.require(!model.moe_pad_expert_input_to_capacity || has_capacity,
                {"model.moe_pad_expert_input_to_capacity", "model.moe_expert_capacity_factor"},
                "model.moe_pad_expert_input_to_capacity needs a capacity factor.",
                "Set model.moe_expert_capacity_factor.");
}

void check_dispatch(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool gathers = model.moe_token_dispatcher_type == TokenDispatcher::kAllGather;
  check.require(!model.add_bias_linear || expert_tensor_parallel_size_or_default(model) == 1,
                {"model.add_bias_linear", "model.expert_tensor_parallel_size"},
                "model.add_bias_linear with experts needs an expert tensor parallel size of 1.",
                "Set model.add_bias_linear=false.");
  check.require(!model.add_bias_linear || !model.moe_shared_expert_intermediate_size,
                {"model.add_bias_linear", "model.moe_shared_expert_intermediate_size"}, "Shared experts allow no bias.",
                "Set model.add_bias_linear=false.");
  check.require(!model.moe_shared_expert_overlap || (!gathers && model.moe_shared_expert_intermediate_size),
                {"model.moe_shared_expert_overlap", "model.moe_token_dispatcher_type",
                 "model.moe_shared_expert_intermediate_size"},
                "model.moe_shared_expert_overlap needs dispatcher alltoall or flex and shared experts.");
  check.require(!model.moe_router_padding_for_quantization || (!gathers && check.config().mixed_precision.fp8),
                {"model.moe_router_padding_for_quantization", "model.moe_token_dispatcher_type"},
                "model.moe_router_padding_for_quantization needs fp8 or fp4 and a dispatcher other than allgather.");
  check.require(
      check.stored("model.moe_enable_deepep") != "true" || model.moe_token_dispatcher_type == TokenDispatcher::kFlex,
      {"model.moe_enable_deepep", "model.moe_token_dispatcher_type"}, "model.moe_enable_deepep needs dispatcher flex.",
      "Set model.moe_token_dispatcher_type=flex.");
  check.require(check.stored("model.moe_expert_rank_capacity_factor") == "null" ||
                    model.moe_flex_dispatcher_backend != FlexBackend::kDeepEp,
                {"model.moe_expert_rank_capacity_factor", "model.moe_flex_dispatcher_backend"},
                "model.moe_expert_rank_capacity_factor needs backend hybridep or ncclep.");
  check.require(check.purpose() == Purpose::kPlan || model.tensor_model_parallel_size == 1 || model.sequence_parallel,
                {"model.sequence_parallel", "model.tensor_model_parallel_size"},
                "Training experts with tensor parallelism needs sequence parallelism.",
                "Set model.sequence_parallel=true.");
}

}  // namespace

void check_model(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  check.require(!(model.bf16 && model.fp16), {"model.bf16", "model.fp16"}, "model.bf16 and model.fp16 are both true.",
                "Choose one.");
  const bool fused_loss =
      model.cross_entropy_loss_fusion && check.resolved().is_explicit("model.cross_entropy_loss_fusion");
  check.require(!model.deterministic_mode || !fused_loss,
                {"model.deterministic_mode", "model.cross_entropy_loss_fusion"},
                "model.deterministic_mode excludes model.cross_entropy_loss_fusion.",
                "Set model.cross_entropy_loss_fusion=false.");
  if (!model.num_layers || !model.hidden_size || !model.num_attention_heads) return;
  check_heads(check);
  check_positions(check);
  check_widths(check);
}

void check_recompute(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const std::vector<std::string> fields = {"model.recompute_granularity", "model.recompute_method",
                                           "model.recompute_num_layers"};
  if (!model.recompute_granularity) {
    check.require(!model.recompute_method && !model.recompute_num_layers, fields,
                  "model.recompute_method and model.recompute_num_layers need model.recompute_granularity.",
                  "Set model.recompute_granularity=full.");
    return;
  }
  if (*model.recompute_granularity == RecomputeGranularity::kSelective) {
    check.require(!model.recompute_method && !model.recompute_num_layers, fields,
                  "Selective recomputation takes neither model.recompute_method nor model.recompute_num_layers.",
                  "Set both to null.");
    const std::set<std::string> modules(model.recompute_modules->begin(), model.recompute_modules->end());
    check.require(!modules.contains("moe_act") || model.moe_grouped_gemm,
                  {"model.recompute_modules", "model.moe_grouped_gemm"},
                  "Recomputing moe_act needs model.moe_grouped_gemm.");
    check.require(!modules.contains("mla_up_proj") || model.multi_latent_attention,
                  {"model.recompute_modules", "model.multi_latent_attention"},
                  "Recomputing mla_up_proj needs model.multi_latent_attention.");
    const bool attention_only = modules.size() == 1 && modules.contains("core_attn");
    check.require(attention_only || check.purpose() == Purpose::kPlan, {"model.recompute_modules"},
                  check.show("model.recompute_modules") +
                      " asks for modules other than core_attn, which this release cannot recompute.",
                  "Use [core_attn], or full recomputation.");
    return;
  }
  check.require(model.recompute_method.has_value(), fields, "Full recomputation needs model.recompute_method.",
                "Use uniform or block.");
  check.require(model.recompute_num_layers.has_value(), fields, "Full recomputation needs model.recompute_num_layers.",
                "Use 1 to recompute every layer by itself.");
  if (!model.recompute_num_layers || !model.num_layers) return;
  check.require(*model.recompute_num_layers <= *model.num_layers, {"model.recompute_num_layers", "model.num_layers"},
                check.show("model.recompute_num_layers") + " is more than " + check.show("model.num_layers") + ".");
}

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
  check_balancing(check);
  check_dispatch(check);
}

}  // namespace pharos::config
