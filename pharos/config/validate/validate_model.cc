// Rules of the model's geometry and recomputation (bridge-config.md 1.4, 1.6).
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
      model.kv_channels || model.multi_latent_attention || *model.hidden_size % heads == 0,
      {"model.hidden_size", "model.num_attention_heads"},
      check.show("model.hidden_size") + " is not divisible by " + check.show("model.num_attention_heads") + ".",
      "Set model.kv_channels, or use a number of heads that divides the width.");
  if (model.multi_latent_attention) return;
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

/// At most one way of stretching positions acts.
void check_stretched_positions(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  const bool yarn = model.position_embedding_type == PositionEmbedding::kYarn;
  const int ways = (yarn ? 1 : 0) + (model.rope_scaling ? 1 : 0) + (model.seq_len_interpolation_factor ? 1 : 0);
  check.require(ways <= 1,
                {"model.position_embedding_type", "model.rope_scaling", "model.seq_len_interpolation_factor"},
                "Two of YaRN (position_embedding_type), model.rope_scaling and model.seq_len_interpolation_factor are "
                "on.",
                "Choose one.");
  if (model.rope_scaling) {
    check.require(model.rope_scaling_high_freq_factor > model.rope_scaling_low_freq_factor,
                  {"model.rope_scaling_high_freq_factor", "model.rope_scaling_low_freq_factor"},
                  check.show("model.rope_scaling_high_freq_factor") + " is not above " +
                      check.show("model.rope_scaling_low_freq_factor") + ".");
  }
  check.require(!yarn || (model.yarn_rotary_scaling_factor && model.yarn_original_max_position_embeddings),
                {"model.position_embedding_type", "model.yarn_rotary_scaling_factor",
                 "model.yarn_original_max_position_embeddings"},
                "position_embedding_type yarn needs model.yarn_rotary_scaling_factor and "
                "model.yarn_original_max_position_embeddings.",
                "Set both.");
}

void check_positions(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  if (model.multi_latent_attention) return;
  const bool rotary = model.position_embedding_type == PositionEmbedding::kRope ||
                      model.position_embedding_type == PositionEmbedding::kYarn;
  if (rotary) {
    const auto rotated =
        static_cast<std::int64_t>(static_cast<double>(kv_channels_or_default(model)) * model.rotary_percent);
    check.require(rotated >= 2 && rotated % 2 == 0, {"model.kv_channels", "model.rotary_percent", "model.hidden_size"},
                  "The rotated width of a head is " + number(rotated) + ", which is not a positive even number.",
                  "Choose model.kv_channels × model.rotary_percent even.");
  }
  check_stretched_positions(check);
}

/// Multi-latent attention has heads, positions and biases of its own: what it would not read is refused where it
/// changes the model.
void check_latent_attention(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  if (!model.multi_latent_attention) return;
  const std::string latent = "model.multi_latent_attention";
  check.require(model.qk_pos_emb_head_dim % 2 == 0, {"model.qk_pos_emb_head_dim"},
                check.show("model.qk_pos_emb_head_dim") + " is odd; rotation needs pairs.");
  check.require(num_query_groups_or_default(model) == *model.num_attention_heads,
                {"model.num_query_groups", "model.num_attention_heads", latent},
                "Multi-latent attention has keys and values for every head, not for " +
                    check.show("model.num_query_groups") + ".",
                "Leave model.num_query_groups out.");
  check.require(model.softmax_type == SoftmaxType::kVanilla, {"model.softmax_type", latent},
                "Multi-latent attention has no attention sinks.", "Set model.softmax_type=vanilla.");
  check.require(!model.add_qkv_bias, {"model.add_qkv_bias", latent},
                "Multi-latent attention has no q, k, v projection that model.add_qkv_bias could be in.",
                "Set model.add_qkv_bias=false.");
  check.require(!model.rope_scaling && !model.seq_len_interpolation_factor,
                {"model.rope_scaling", "model.seq_len_interpolation_factor", latent},
                "Multi-latent attention stretches positions by YaRN only.",
                "Set model.rope_type=yarn and model.rotary_scaling_factor.");
}

void check_prediction(RuleChecker& check) {
  const ModelConfig& model = check.config().model;
  if (!model.mtp_num_layers) return;
  check.require(model.position_embedding_type != PositionEmbedding::kLearnedAbsolute,
                {"model.mtp_num_layers", "model.position_embedding_type"},
                "Multi-token prediction does not go with learned positions.",
                "Set model.position_embedding_type=rope.");
  check.require(
      *model.mtp_num_layers < model.seq_length, {"model.mtp_num_layers", "model.seq_length"},
      check.show("model.mtp_num_layers") + " predicts beyond the end of " + check.show("model.seq_length") + ".",
      "Use fewer layers of multi-token prediction or longer sequences.");
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
      check.require(*frequency >= 1, {field}, check.show(field) + " is less than 1.", "Use 1 or more.");
      return;
    }
    const auto& list = std::get<std::vector<std::int64_t>>(pattern);
    check.require(list.size() == static_cast<std::size_t>(*model.num_layers), {field, "model.num_layers"},
                  check.show(field) + " has " + std::to_string(list.size()) + " entries, not one for each of " +
                      number(*model.num_layers) + " layers.",
                  "Give a list of " + number(*model.num_layers) + " entries, or a number n for every n-th layer.");
    const bool valid =
        std::all_of(list.begin(), list.end(), [](std::int64_t entry) { return entry == 0 || entry == 1; });
    check.require(!binary || valid, {field}, check.show(field) + " has entries other than 0 and 1.",
                  "1 is a layer that has it, 0 one that does not.");
  };
  check_pattern("model.moe_layer_freq", model.moe_layer_freq, true);
  if (model.window_attn_skip_freq) check_pattern("model.window_attn_skip_freq", *model.window_attn_skip_freq, true);
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
  check_latent_attention(check);
  check_prediction(check);
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
    check.require(!modules.contains("layernorm") || check.purpose() == Purpose::kPlan, {"model.recompute_modules"},
                  check.show("model.recompute_modules") + " asks for layernorm, which this release cannot recompute.",
                  "Leave it out.");
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

}  // namespace pharos::config
