#include "pharos/hf/architecture.h"

#include <array>
#include <cmath>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/run_config.h"
#include "pharos/config/schema/schema.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using config::PositionEmbedding;

/// Fields of the section model that say what the model is.
constexpr std::array kFields = {"num_layers",
                                "hidden_size",
                                "num_attention_heads",
                                "ffn_hidden_size",
                                "num_query_groups",
                                "kv_channels",
                                "seq_length",
                                "vocab_size",
                                "share_embeddings_and_output_weights",
                                "position_embedding_type",
                                "rotary_base",
                                "rotary_percent",
                                "rotary_interleaved",
                                "rope_scaling",
                                "rope_scaling_factor",
                                "rope_scaling_low_freq_factor",
                                "rope_scaling_high_freq_factor",
                                "rope_scaling_original_max_position_embeddings",
                                "seq_len_interpolation_factor",
                                "yarn_rotary_scaling_factor",
                                "yarn_original_max_position_embeddings",
                                "yarn_beta_fast",
                                "yarn_beta_slow",
                                "yarn_correction_range_round_to_int",
                                "rope_attention_factor",
                                "scale_embeddings_by_hidden_size",
                                "normalization",
                                "layernorm_epsilon",
                                "layernorm_zero_centered_gamma",
                                "qk_layernorm",
                                "gated_linear_unit",
                                "activation_func",
                                "activation_func_clamp_value",
                                "glu_linear_offset",
                                "add_bias_linear",
                                "add_qkv_bias",
                                "add_attention_output_bias",
                                "add_mlp_bias",
                                "hidden_dropout",
                                "attention_dropout",
                                "softmax_type",
                                "softmax_scale",
                                "attn_logit_softcapping",
                                "final_logit_softcapping",
                                "sandwich_layernorm",
                                "window_size",
                                "window_attn_skip_freq",
                                "mtp_num_layers",
                                "multi_latent_attention",
                                "q_lora_rank",
                                "kv_lora_rank",
                                "qk_head_dim",
                                "qk_pos_emb_head_dim",
                                "v_head_dim",
                                "rope_type",
                                "rotary_scaling_factor",
                                "original_max_position_embeddings",
                                "beta_fast",
                                "beta_slow",
                                "mscale_all_dim",
                                "mla_rotary_interleaved",
                                "mla_latent_layernorm_epsilon",
                                "num_moe_experts",
                                "moe_router_topk",
                                "moe_ffn_hidden_size",
                                "moe_layer_freq",
                                "moe_shared_expert_intermediate_size",
                                "moe_shared_expert_gate",
                                "moe_router_score_function",
                                "moe_router_pre_softmax",
                                "moe_router_topk_scaling_factor",
                                "moe_router_num_groups",
                                "moe_router_group_topk",
                                "moe_router_enable_expert_bias",
                                "moe_router_group_score",
                                "moe_router_norm_topk_prob"};

/// The fields get the values of a default model: they have no effect.
template <typename... Members>
void reset(ModelConfig& model, Members... members) {
  static const ModelConfig defaults;
  ((model.*members = defaults.*members), ...);
}

double yarn_scale(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

/// rope_attention_factor becomes what cosines and sines are really multiplied with.
void settle_latent_positions(ModelConfig& model) {
  reset(model, &ModelConfig::kv_channels, &ModelConfig::num_query_groups, &ModelConfig::rope_scaling,
        &ModelConfig::seq_len_interpolation_factor, &ModelConfig::position_embedding_type);
  model.mla_latent_layernorm_epsilon = model.mla_latent_layernorm_epsilon.value_or(model.layernorm_epsilon);
  if (model.rope_type == config::MlaRopeType::kRope) {
    reset(model, &ModelConfig::rotary_scaling_factor, &ModelConfig::original_max_position_embeddings,
          &ModelConfig::beta_fast, &ModelConfig::beta_slow, &ModelConfig::mscale, &ModelConfig::mscale_all_dim,
          &ModelConfig::rope_attention_factor);
  } else if (!model.rope_attention_factor) {
    model.rope_attention_factor = yarn_scale(model.rotary_scaling_factor, model.mscale) /
                                  yarn_scale(model.rotary_scaling_factor, model.mscale_all_dim);
  }
}

void settle_plain_positions(ModelConfig& model) {
  model.kv_channels = config::kv_channels_or_default(model);
  model.num_query_groups = config::num_query_groups_or_default(model);
  reset(model, &ModelConfig::q_lora_rank, &ModelConfig::kv_lora_rank, &ModelConfig::qk_head_dim,
        &ModelConfig::qk_pos_emb_head_dim, &ModelConfig::v_head_dim, &ModelConfig::rope_type,
        &ModelConfig::rotary_scaling_factor, &ModelConfig::original_max_position_embeddings, &ModelConfig::beta_fast,
        &ModelConfig::beta_slow, &ModelConfig::mscale, &ModelConfig::mscale_all_dim,
        &ModelConfig::mla_rotary_interleaved, &ModelConfig::mla_latent_layernorm_epsilon);
  const bool is_yarn = model.position_embedding_type == PositionEmbedding::kYarn;
  if (model.position_embedding_type != PositionEmbedding::kRope) {
    reset(model, &ModelConfig::rope_scaling, &ModelConfig::seq_len_interpolation_factor);
    if (!is_yarn)
      reset(model, &ModelConfig::rotary_base, &ModelConfig::rotary_percent, &ModelConfig::rotary_interleaved);
  }
  if (!is_yarn) {
    return reset(model, &ModelConfig::rope_attention_factor, &ModelConfig::yarn_rotary_scaling_factor,
                 &ModelConfig::yarn_original_max_position_embeddings, &ModelConfig::yarn_beta_fast,
                 &ModelConfig::yarn_beta_slow, &ModelConfig::yarn_correction_range_round_to_int);
  }
  const double factor = model.yarn_rotary_scaling_factor.value_or(1);
  model.yarn_beta_fast = model.yarn_beta_fast.value_or(32);
  model.yarn_beta_slow = model.yarn_beta_slow.value_or(1);
  model.yarn_correction_range_round_to_int = model.yarn_correction_range_round_to_int.value_or(true);
  if (model.rope_attention_factor) return;
  model.rope_attention_factor =
      model.yarn_mscale && model.yarn_mscale_all_dim
          ? yarn_scale(factor, *model.yarn_mscale) / yarn_scale(factor, *model.yarn_mscale_all_dim)
          : yarn_scale(factor, 1);
}

void settle_positions(ModelConfig& model) {
  if (model.position_embedding_type != PositionEmbedding::kLearnedAbsolute) reset(model, &ModelConfig::seq_length);
  if (model.multi_latent_attention) {
    settle_latent_positions(model);
  } else {
    settle_plain_positions(model);
  }
  if (model.rope_scaling) {
    reset(model, &ModelConfig::seq_len_interpolation_factor);
  } else {
    reset(model, &ModelConfig::rope_scaling_factor, &ModelConfig::rope_scaling_low_freq_factor,
          &ModelConfig::rope_scaling_high_freq_factor, &ModelConfig::rope_scaling_original_max_position_embeddings);
  }
}

/// A whole number under the root in both directions, and nothing for the scale that is the default.
void settle_scale(ModelConfig& model) {
  if (!model.softmax_scale) return;
  const double square = 1 / (*model.softmax_scale * *model.softmax_scale);
  const double whole = std::round(square);
  if (std::abs(square - whole) > 1e-9 * square) return;
  model.softmax_scale = 1 / std::sqrt(whole);
  const std::int64_t width = model.multi_latent_attention ? model.qk_head_dim + model.qk_pos_emb_head_dim
                                                          : config::kv_channels_or_default(model);
  const bool is_stretched =
      model.multi_latent_attention && model.rope_type == config::MlaRopeType::kYarn && model.mscale_all_dim != 0;
  if (whole == static_cast<double>(width) && !is_stretched) model.softmax_scale.reset();
}

void settle_layers(ModelConfig& model) {
  model.add_qkv_bias = model.add_qkv_bias || model.add_bias_linear;
  model.add_attention_output_bias = model.add_attention_output_bias.value_or(model.add_bias_linear);
  model.add_mlp_bias = model.add_mlp_bias.value_or(model.add_bias_linear);
  model.ffn_hidden_size = config::ffn_hidden_size_or_default(model);
  if (model.multi_latent_attention) {
    model.add_qkv_bias = false;
  } else {
    model.add_bias_linear = false;
  }
  if (!model.gated_linear_unit) reset(model, &ModelConfig::glu_linear_offset);
  if (model.window_size && model.window_size->front() < 0) model.window_size.reset();
  if (!model.window_size) {
    model.window_attn_skip_freq.reset();
  } else {
    std::vector<std::int64_t> pattern;
    for (std::int64_t i = 0; i < *model.num_layers; ++i) {
      std::int64_t has_window = 1;
      if (model.window_attn_skip_freq) {
        const auto* every = std::get_if<std::int64_t>(&*model.window_attn_skip_freq);
        has_window =
            every != nullptr
                ? (i + 1) % *every != 0
                : std::get<std::vector<std::int64_t>>(*model.window_attn_skip_freq).at(static_cast<std::size_t>(i));
      }
      pattern.push_back(has_window);
    }
    model.window_attn_skip_freq = pattern;
  }
}

void settle_experts(ModelConfig& model) {
  if (!model.num_moe_experts) {
    return reset(model, &ModelConfig::moe_router_topk, &ModelConfig::moe_ffn_hidden_size, &ModelConfig::moe_layer_freq,
                 &ModelConfig::moe_shared_expert_intermediate_size, &ModelConfig::moe_shared_expert_gate,
                 &ModelConfig::moe_router_score_function, &ModelConfig::moe_router_pre_softmax,
                 &ModelConfig::moe_router_topk_scaling_factor, &ModelConfig::moe_router_num_groups,
                 &ModelConfig::moe_router_group_topk, &ModelConfig::moe_router_enable_expert_bias,
                 &ModelConfig::moe_router_group_score, &ModelConfig::moe_router_norm_topk_prob);
  }
  model.moe_ffn_hidden_size = config::moe_ffn_hidden_size_or_default(model);
  std::vector<std::int64_t> pattern;
  bool has_dense_layer = false;
  for (std::int64_t i = 0; i < *model.num_layers; ++i) {
    pattern.push_back(config::is_moe_layer(model, i) ? 1 : 0);
    has_dense_layer |= pattern.back() == 0;
  }
  model.moe_layer_freq = pattern;
  if (!has_dense_layer) model.ffn_hidden_size.reset();
  if (!model.moe_shared_expert_intermediate_size) reset(model, &ModelConfig::moe_shared_expert_gate);
  model.moe_router_topk_scaling_factor = model.moe_router_topk_scaling_factor.value_or(1);
  const bool is_softmax = model.moe_router_score_function == config::RouterScoreFunction::kSoftmax;
  if (is_softmax && !model.moe_router_pre_softmax) {
    model.moe_router_norm_topk_prob = true;
  } else if (!model.moe_router_norm_topk_prob) {  // Megatron's rule
    model.moe_router_norm_topk_prob = !is_softmax && model.moe_router_topk > 1;
  }
  if (!is_softmax) reset(model, &ModelConfig::moe_router_pre_softmax);
  // The softmax over the chosen is that over all, divided by the chosen ones' sum.
  if (is_softmax && *model.moe_router_norm_topk_prob) model.moe_router_pre_softmax = false;
  if (!model.moe_router_num_groups || *model.moe_router_num_groups == 1)
    reset(model, &ModelConfig::moe_router_num_groups, &ModelConfig::moe_router_group_topk,
          &ModelConfig::moe_router_group_score);
}

ModelConfig settled(ModelConfig model) {
  settle_scale(model);
  settle_layers(model);
  settle_experts(model);
  settle_positions(model);
  return model;
}

}  // namespace

std::vector<std::string> architecture_differences(const ModelConfig& model, const ModelConfig& other,
                                                  const std::string& name) {
  config::RunConfig first, second;
  first.model = settled(model);
  second.model = settled(other);
  std::vector<std::string> differences;
  for (const char* field_name : kFields) {
    const config::Field* field = config::schema().find(std::string("model.") + field_name);
    PHAROS_CHECK(field != nullptr && field->member, std::string("no field model.") + field_name);
    const config::Value a = field->read(first), b = field->read(second);
    if (a == b) continue;
    differences.push_back(field->name + " = " + config::to_message_text(a) + " (" + name + ": " +
                          config::to_message_text(b) + ")");
  }
  return differences;
}

}  // namespace pharos::hf
