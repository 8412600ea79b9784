// Section `model`: geometry, parallelism, precision, recomputation and mixture of experts of one decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pharos/config/enums.h"

namespace pharos::config {

/// One number for all layers, or one entry per layer.
using IntegerOrList = std::variant<std::int64_t, std::vector<std::int64_t>>;

/// Fields are spelt and default as in Megatron-Bridge (GPT provider); schema_model.cc documents each of them.
/// A field without value (nullopt) is derived by a function of derived.h or has no effect.
struct ModelConfig {
  // Weights and geometry from a Hugging Face folder (own addition).
  std::optional<std::string> hf_path;

  // Geometry.
  std::optional<std::int64_t> num_layers;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> num_attention_heads;
  std::optional<std::int64_t> ffn_hidden_size;
  std::optional<std::int64_t> num_query_groups;
  std::optional<std::int64_t> kv_channels;
  std::int64_t seq_length = 1024;
  std::optional<std::int64_t> vocab_size;
  std::int64_t make_vocab_size_divisible_by = 128;
  bool should_pad_vocab = false;
  bool share_embeddings_and_output_weights = true;

  // Positions.
  PositionEmbedding position_embedding_type = PositionEmbedding::kLearnedAbsolute;
  double rotary_base = 10000.0;
  double rotary_percent = 1.0;
  bool rotary_interleaved = false;
  bool rope_scaling = false;
  double rope_scaling_factor = 1.0;
  double rope_scaling_low_freq_factor = 1.0;                          // own addition: Llama 3's constants, settable
  double rope_scaling_high_freq_factor = 4.0;                         // own addition
  std::int64_t rope_scaling_original_max_position_embeddings = 8192;  // own addition
  std::optional<double> seq_len_interpolation_factor;
  std::optional<double> yarn_rotary_scaling_factor;
  std::optional<std::int64_t> yarn_original_max_position_embeddings;
  std::optional<double> yarn_beta_fast;
  std::optional<double> yarn_beta_slow;
  std::optional<double> yarn_mscale;
  std::optional<double> yarn_mscale_all_dim;
  std::optional<bool> yarn_correction_range_round_to_int;
  std::optional<double> rope_attention_factor;   // own addition: what cosines and sines are multiplied with
  bool scale_embeddings_by_hidden_size = false;  // own addition: embeddings times sqrt(hidden_size) (Gemma)

  // Layers.
  Normalization normalization = Normalization::kLayerNorm;
  double layernorm_epsilon = 1e-5;
  bool layernorm_zero_centered_gamma = false;
  bool qk_layernorm = false;
  bool gated_linear_unit = false;
  Activation activation_func = Activation::kGelu;
  std::optional<double> activation_func_clamp_value;
  double glu_linear_offset = 0.0;
  bool add_bias_linear = true;
  bool add_qkv_bias = false;
  std::optional<bool> add_attention_output_bias;  // own addition: unset follows add_bias_linear
  std::optional<bool> add_mlp_bias;               // own addition: unset follows add_bias_linear
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  double init_method_std = 0.02;
  std::optional<double> embedding_init_method_std;
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  bool attention_softmax_in_fp32 = true;
  SoftmaxType softmax_type = SoftmaxType::kVanilla;
  std::optional<double> softmax_scale;            // own addition: unset: 1/sqrt(width of a head)
  std::optional<double> attn_logit_softcapping;   // own addition
  std::optional<double> final_logit_softcapping;  // own addition
  bool sandwich_layernorm = false;                // own addition: norms after attention and MLP too (Gemma 2)
  std::optional<std::vector<std::int64_t>> window_size;
  std::optional<IntegerOrList> window_attn_skip_freq;
  bool calculate_per_token_loss = false;
  bool parallel_output = true;
  bool cross_entropy_loss_fusion = true;
  LossFusion cross_entropy_fusion_impl = LossFusion::kNative;
  bool masked_softmax_fusion = true;
  bool bias_activation_fusion = false;
  bool bias_dropout_fusion = false;
  bool apply_rope_fusion = false;
  bool persist_layer_norm = false;
  std::optional<bool> gradient_accumulation_fusion;
  bool deterministic_mode = false;

  // Multi-token prediction.
  std::optional<std::int64_t> mtp_num_layers;
  double mtp_loss_scaling_factor = 0.1;

  // Multi-latent attention.
  bool multi_latent_attention = false;
  std::optional<std::int64_t> q_lora_rank = 512;
  std::int64_t kv_lora_rank = 512;
  std::int64_t qk_head_dim = 128;
  std::int64_t qk_pos_emb_head_dim = 64;
  std::int64_t v_head_dim = 128;
  MlaRopeType rope_type = MlaRopeType::kYarn;
  double rotary_scaling_factor = 40.0;
  std::int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  bool mla_rotary_interleaved = true;                  // own addition: pairs (2i, 2i+1), as DeepSeek's checkpoints have
  std::optional<double> mla_latent_layernorm_epsilon;  // own addition: unset: layernorm_epsilon

  // Precision; section mixed_precision overwrites these when given.
  bool fp16 = false;
  bool bf16 = false;
  DType params_dtype = DType::kFloat32;
  std::optional<DType> pipeline_dtype;

  // Parallelism.
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::optional<std::string> pipeline_schedule;
  std::optional<std::int64_t> virtual_pipeline_model_parallel_size;
  std::optional<std::int64_t> expert_tensor_parallel_size;
  bool sequence_parallel = false;
  std::optional<std::vector<std::string>> cp_comm_type;
  std::optional<std::string> pipeline_model_parallel_layout;
  std::optional<std::int64_t> num_layers_in_first_pipeline_stage;
  std::optional<std::int64_t> num_layers_in_last_pipeline_stage;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::optional<std::int64_t> microbatch_group_size_per_vp_stage;
  bool overlap_p2p_comm = false;
  bool batch_p2p_comm = true;
  bool overlap_moe_expert_parallel_comm = false;
  bool delay_wgrad_compute = false;

  // Recomputation.
  std::optional<RecomputeGranularity> recompute_granularity;
  std::optional<RecomputeMethod> recompute_method;
  std::optional<std::int64_t> recompute_num_layers;
  std::optional<std::vector<std::string>> recompute_modules;

  // Mixture of experts.
  std::optional<std::int64_t> num_moe_experts;
  std::int64_t moe_router_topk = 2;
  std::optional<std::int64_t> moe_ffn_hidden_size;
  IntegerOrList moe_layer_freq = std::int64_t{1};
  std::optional<std::int64_t> moe_shared_expert_intermediate_size;
  bool moe_shared_expert_gate = false;
  bool moe_shared_expert_overlap = false;
  std::vector<std::string> moe_router_load_balancing_type = {"aux_loss"};
  std::vector<double> moe_aux_loss_coeff = {0.0};
  std::optional<double> moe_z_loss_coeff;
  RouterScoreFunction moe_router_score_function = RouterScoreFunction::kSoftmax;
  bool moe_router_pre_softmax = false;
  std::optional<double> moe_router_topk_scaling_factor;
  std::optional<std::int64_t> moe_router_num_groups;
  std::optional<std::int64_t> moe_router_group_topk;
  bool moe_router_enable_expert_bias = false;
  double moe_router_bias_update_rate = 1e-3;
  RouterGroupScore moe_router_group_score = RouterGroupScore::kSumOfTopk;  // own addition
  std::optional<bool> moe_router_norm_topk_prob;                           // own addition: unset: Megatron's rule
  std::optional<RouterDType> moe_router_dtype;
  std::optional<double> moe_input_jitter_eps;
  std::optional<double> moe_expert_capacity_factor;
  bool moe_pad_expert_input_to_capacity = false;
  TokenDropPolicy moe_token_drop_policy = TokenDropPolicy::kProbabilities;
  TokenDispatcher moe_token_dispatcher_type = TokenDispatcher::kAllGather;
  FlexBackend moe_flex_dispatcher_backend = FlexBackend::kDeepEp;
  bool moe_permute_fusion = false;
  bool moe_router_fusion = false;
  bool moe_grouped_gemm = false;
  bool moe_router_padding_for_quantization = false;
  bool moe_per_layer_logging = false;
  bool moe_router_force_load_balancing = false;
  std::optional<double> moe_router_force_biased;
};

}  // namespace pharos::config
