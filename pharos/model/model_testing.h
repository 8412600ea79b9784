// Small models for the tests of this module.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "pharos/model/transformer.h"

namespace pharos::model::testing {

/// RMSNorm, rotary positions, SwiGLU, no biases, untied; 3 layers, 32 wide, 61 tokens, 24 positions. The weights start
/// far from zero, so that a wrong position, mask or head shows.
inline config::ModelConfig llama_like() {
  config::ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 32;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 48;
  config.seq_length = 24;
  config.vocab_size = 61;
  config.share_embeddings_and_output_weights = false;
  config.position_embedding_type = config::PositionEmbedding::kRope;
  config.normalization = config::Normalization::kRmsNorm;
  config.gated_linear_unit = true;
  config.activation_func = config::Activation::kSilu;
  config.add_bias_linear = false;
  config.hidden_dropout = config.attention_dropout = 0;
  config.init_method_std = 0.3;
  return config;
}

/// llama_like() with grouped queries, head norms, biases on q, k, v, an own head width and half of each head rotated.
inline config::ModelConfig grouped_with_qk_norm() {
  config::ModelConfig config = llama_like();
  config.num_query_groups = 2;
  config.kv_channels = 12;
  config.qk_layernorm = true;
  config.add_qkv_bias = true;
  config.rotary_percent = 0.5;
  return config;
}

/// LayerNorm, learned positions, GELU, biases, tied, vocabulary padded to 128.
inline config::ModelConfig gpt2_like() {
  config::ModelConfig config = llama_like();
  config.position_embedding_type = config::PositionEmbedding::kLearnedAbsolute;
  config.normalization = config::Normalization::kLayerNorm;
  config.gated_linear_unit = false;
  config.activation_func = config::Activation::kGeluTanh;
  config.add_bias_linear = true;
  config.share_embeddings_and_output_weights = true;
  config.should_pad_vocab = true;
  return config;
}

/// llama_like() with 4 experts in every layer, of which a token takes two, balanced by an auxiliary loss.
inline config::ModelConfig mixtral_like() {
  config::ModelConfig config = llama_like();
  config.num_moe_experts = 4;
  config.moe_router_topk = 2;
  config.moe_ffn_hidden_size = 24;
  config.moe_aux_loss_coeff = {0.1};
  config.moe_z_loss_coeff = 0.01;
  return config;
}

/// Latent attention with YaRN, a dense first layer, shared experts, softmax before the choice, as DeepSeek-V2-Lite.
inline config::ModelConfig deepseek_like() {
  config::ModelConfig config = mixtral_like();
  config.multi_latent_attention = true;
  config.q_lora_rank = std::nullopt;
  config.kv_lora_rank = 16;
  config.qk_head_dim = 8;
  config.qk_pos_emb_head_dim = 4;
  config.v_head_dim = 6;
  config.rotary_scaling_factor = 4;
  config.original_max_position_embeddings = 8;
  config.mscale = config.mscale_all_dim = 0.707;
  config.qk_layernorm = true;
  config.moe_layer_freq = std::vector<std::int64_t>{0, 1, 1};
  config.moe_shared_expert_intermediate_size = 16;
  config.moe_router_pre_softmax = true;
  config.moe_router_load_balancing_type = {"seq_aux_loss"};
  config.moe_router_dtype = config::RouterDType::kFloat32;
  return config;
}

/// deepseek_like() without experts.
inline config::ModelConfig latent_like() {
  config::ModelConfig config = deepseek_like();
  config.num_moe_experts = std::nullopt;
  config.moe_shared_expert_intermediate_size = std::nullopt;
  config.moe_layer_freq = std::int64_t{1};
  return config;
}

/// Norms around every block, scaled embeddings, soft caps on scores and logits, a window in every other layer, tied.
inline config::ModelConfig gemma2_like() {
  config::ModelConfig config = llama_like();
  config.num_query_groups = 2;
  config.layernorm_zero_centered_gamma = true;
  config.sandwich_layernorm = true;
  config.scale_embeddings_by_hidden_size = true;
  config.softmax_scale = 0.2;
  config.attn_logit_softcapping = 5;
  config.final_logit_softcapping = 3;
  config.window_size = std::vector<std::int64_t>{7, 0};
  config.window_attn_skip_freq = std::int64_t{2};
  config.activation_func = config::Activation::kGeluTanh;
  config.share_embeddings_and_output_weights = true;
  return config;
}

/// deepseek_like() with compressed queries, sigmoid scores with a bias, groups, and a layer of multi-token prediction,
/// as DeepSeek-V3.
inline config::ModelConfig deepseek_v3_like() {
  config::ModelConfig config = deepseek_like();
  config.q_lora_rank = 12;
  config.moe_router_score_function = config::RouterScoreFunction::kSigmoid;
  config.moe_router_pre_softmax = false;
  config.moe_router_enable_expert_bias = true;
  config.moe_router_num_groups = 2;
  config.moe_router_group_topk = 1;
  config.moe_router_group_score = config::RouterGroupScore::kSumOfTwo;
  config.moe_router_topk_scaling_factor = 2.5;
  config.mtp_num_layers = 1;
  return config;
}

/// A whole model of seed 5 on one rank, with zeroed main gradients.
struct Model {
  explicit Model(const config::ModelConfig& config) : transformer(config, whole_model(config), comm::Mesh(1, {}), 0) {
    transformer.materialize(at::kCPU, 5);
    for (auto* parameter : transformer.parameters()) {
      parameter->main_grad = at::zeros(parameter->data.sizes(), at::kFloat);
      by_name[parameter->name] = parameter;
    }
  }
  tensor::Parameter& operator[](const std::string& name) { return *by_name.at(name); }

  Transformer transformer;
  std::map<std::string, tensor::Parameter*> by_name;
};

}  // namespace pharos::model::testing
