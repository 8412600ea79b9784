// Key values of published models' config.json, shortened to what is looked at (bridge-config.md 4.2).
#include <gtest/gtest.h>

#include "pharos/base/json.h"
#include "pharos/config/derived.h"
#include "pharos/hf/hf_config.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;

ModelConfig parse(const char* text) { return parse_hf_config(base::parse_json(text, "test"), "config.json").model; }

constexpr const char* kV2Lite = R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false,
  "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
  "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
  "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
  "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
  "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true, "topk_group": 1, "topk_method": "greedy",
  "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})";

constexpr const char* kV2 = R"({"architectures": ["DeepseekV2ForCausalLM"], "aux_loss_alpha": 0.001,
  "first_k_dense_replace": 1, "hidden_size": 5120, "intermediate_size": 12288, "kv_lora_rank": 512,
  "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1536, "n_group": 8,
  "n_routed_experts": 160, "n_shared_experts": 2, "norm_topk_prob": false, "num_attention_heads": 128,
  "num_experts_per_tok": 6, "num_hidden_layers": 60, "num_key_value_heads": 128, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
  "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 16.0, "topk_group": 3, "topk_method": "group_limited_greedy",
  "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 102400})";

constexpr const char* kV3 = R"({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3,
  "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
  "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256,
  "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
  "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280})";

constexpr const char* kMoonlight = R"({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 1,
  "aux_loss_alpha": 0.001, "hidden_size": 2048, "intermediate_size": 11264, "kv_lora_rank": 512,
  "max_position_embeddings": 8192, "model_type": "deepseek_v3", "moe_intermediate_size": 1408, "n_group": 1,
  "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 16,
  "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_theta": 50000.0,
  "routed_scaling_factor": 2.446, "scoring_func": "sigmoid", "seq_aux": true, "topk_group": 1,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 163840})";

constexpr const char* kKimiK2 = R"({"architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 1,
  "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
  "model_type": "kimi_k2", "moe_intermediate_size": 2048, "n_group": 1, "n_routed_experts": 384,
  "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8,
  "num_hidden_layers": 61, "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"beta_fast": 1.0, "beta_slow": 1.0,
  "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
  "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_group": 1,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 163840})";

constexpr const char* kLlama32 = R"({"architectures": ["LlamaForCausalLM"], "head_dim": 64, "hidden_size": 2048,
  "intermediate_size": 8192, "max_position_embeddings": 131072, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
  "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256})";

constexpr const char* kLlama3 = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
  "intermediate_size": 28672, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 64,
  "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";

constexpr const char* kMistral = R"({"architectures": ["MistralForCausalLM"], "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})";

constexpr const char* kQwen25 = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2",
  "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "use_sliding_window": false, "vocab_size": 151936})";

constexpr const char* kQwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
  "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
  "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

constexpr const char* kQwen3Moe = R"({"architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1,
  "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
  "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
  "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
  "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
  "sliding_window": null, "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"], "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
  "torch_dtype": "bfloat16", "vocab_size": 32000})";

constexpr const char* kGptOss = R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880, "max_position_embeddings": 131072,
  "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
  "num_key_value_heads": 8, "num_local_experts": 32, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
  "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
  "truncate": false}, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "vocab_size": 201088})";

constexpr const char* kGemma2 = R"({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 50.0,
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "intermediate_size": 14336,
  "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 16, "num_hidden_layers": 42,
  "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "sliding_window": 4096, "torch_dtype": "float32", "vocab_size": 256000})";

struct Geometry {
  const char* text;
  std::int64_t layers, hidden, heads, groups, head_width, feed_forward, vocabulary;
  double base;
  std::int64_t experts = 0, chosen = 0, expert_width = 0, shared_width = 0, dense_layers = 0;
};

class Published : public ::testing::TestWithParam<Geometry> {};

TEST_P(Published, HasItsGeometry) {
  const Geometry& expected = GetParam();
  const ModelConfig model = parse(expected.text);
  EXPECT_EQ(model.num_layers, expected.layers);
  EXPECT_EQ(model.hidden_size, expected.hidden);
  EXPECT_EQ(model.num_attention_heads, expected.heads);
  EXPECT_EQ(model.num_query_groups, expected.groups);
  const std::int64_t width = model.multi_latent_attention ? model.qk_head_dim + model.qk_pos_emb_head_dim
                                                          : config::kv_channels_or_default(model);
  EXPECT_EQ(width, expected.head_width);
  EXPECT_EQ(model.ffn_hidden_size, expected.feed_forward);
  EXPECT_EQ(model.vocab_size, expected.vocabulary);
  EXPECT_EQ(model.rotary_base, expected.base);
  EXPECT_EQ(model.num_moe_experts.value_or(0), expected.experts);
  if (expected.experts == 0) return;
  EXPECT_EQ(model.moe_router_topk, expected.chosen);
  EXPECT_EQ(model.moe_ffn_hidden_size, expected.expert_width);
  EXPECT_EQ(model.moe_shared_expert_intermediate_size.value_or(0), expected.shared_width);
  std::int64_t dense = 0;
  while (!config::is_moe_layer(model, dense)) ++dense;
  EXPECT_EQ(dense, expected.dense_layers);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Published,
    ::testing::Values(Geometry{kV2Lite, 27, 2048, 16, 16, 192, 10944, 102400, 1e4, 64, 6, 1408, 2816, 1},
                      Geometry{kV2, 60, 5120, 128, 128, 192, 12288, 102400, 1e4, 160, 6, 1536, 3072, 1},
                      Geometry{kV3, 61, 7168, 128, 128, 192, 18432, 129280, 1e4, 256, 8, 2048, 2048, 3},
                      Geometry{kMoonlight, 27, 2048, 16, 16, 192, 11264, 163840, 5e4, 64, 6, 1408, 2816, 1},
                      Geometry{kKimiK2, 61, 7168, 64, 64, 192, 18432, 163840, 5e4, 384, 8, 2048, 2048, 1},
                      Geometry{kLlama32, 16, 2048, 32, 8, 64, 8192, 128256, 5e5},
                      Geometry{kLlama3, 80, 8192, 64, 8, 128, 28672, 128256, 5e5},
                      Geometry{kMistral, 32, 4096, 32, 8, 128, 14336, 32000, 1e4},
                      Geometry{kQwen25, 24, 896, 14, 2, 64, 4864, 151936, 1e6},
                      Geometry{kQwen3, 28, 1024, 16, 8, 128, 3072, 151936, 1e6},
                      Geometry{kQwen3Moe, 48, 2048, 32, 4, 128, 6144, 151936, 1e6, 128, 8, 768, 0, 0},
                      Geometry{kMixtral, 32, 4096, 32, 8, 128, 14336, 32000, 1e6, 8, 2, 14336, 0, 0},
                      Geometry{kGptOss, 24, 2880, 64, 8, 64, 2880, 201088, 1.5e5, 32, 4, 2880, 0, 0},
                      Geometry{kGemma2, 42, 3584, 16, 8, 256, 14336, 256000, 1e4}));

TEST_P(Published, IsReadBackFromWhatIsWritten) {
  const HfModel hf = parse_hf_config(base::parse_json(GetParam().text, "test"), "config.json");
  EXPECT_NO_THROW(to_hf_config(hf));
  EXPECT_EQ(express(hf.model).family, hf.family);
}

TEST(PublishedModels, DeepSeekV2RoutesBySoftmaxWithoutRenormalizing) {
  const ModelConfig lite = parse(kV2Lite), whole = parse(kV2);
  for (const ModelConfig& model : {lite, whole}) {
    EXPECT_EQ(model.moe_router_score_function, config::RouterScoreFunction::kSoftmax);
    EXPECT_TRUE(model.moe_router_pre_softmax);
    EXPECT_EQ(model.moe_router_norm_topk_prob, false);
    EXPECT_FALSE(model.moe_router_enable_expert_bias);
    EXPECT_EQ(model.moe_router_load_balancing_type, std::vector<std::string>{"seq_aux_loss"});
    EXPECT_EQ(model.moe_aux_loss_coeff, std::vector<double>{0.001});
    EXPECT_EQ(model.mscale, 0.707);
    EXPECT_EQ(model.mscale_all_dim, 0.707);
    EXPECT_EQ(model.rotary_scaling_factor, 40);
    EXPECT_EQ(model.mla_latent_layernorm_epsilon, 1e-6);
    EXPECT_TRUE(model.qk_layernorm);
  }
  EXPECT_EQ(lite.q_lora_rank, std::nullopt);
  EXPECT_EQ(lite.moe_router_num_groups, std::nullopt);
  EXPECT_EQ(whole.q_lora_rank, 1536);
  EXPECT_EQ(whole.moe_router_num_groups, 8);
  EXPECT_EQ(whole.moe_router_group_topk, 3);
  EXPECT_EQ(whole.moe_router_group_score, config::RouterGroupScore::kMaximum);
  EXPECT_EQ(whole.moe_router_topk_scaling_factor, 16);
}

TEST(PublishedModels, DeepSeekV3RoutesBySigmoidWithABias) {
  const ModelConfig v3 = parse(kV3), moonlight = parse(kMoonlight), kimi = parse(kKimiK2);
  for (const ModelConfig& model : {v3, moonlight, kimi}) {
    EXPECT_EQ(model.moe_router_score_function, config::RouterScoreFunction::kSigmoid);
    EXPECT_TRUE(model.moe_router_enable_expert_bias);
    EXPECT_EQ(model.moe_router_norm_topk_prob, true);
    EXPECT_TRUE(model.mla_rotary_interleaved);
  }
  EXPECT_EQ(v3.moe_router_group_score, config::RouterGroupScore::kSumOfTwo);
  EXPECT_EQ(v3.moe_router_num_groups, 8);
  EXPECT_EQ(v3.mtp_num_layers, 1);
  EXPECT_EQ(v3.moe_aux_loss_coeff, std::vector<double>{1e-4});
  EXPECT_EQ(moonlight.moe_router_num_groups, std::nullopt);
  EXPECT_EQ(moonlight.rope_type, config::MlaRopeType::kRope);
  EXPECT_EQ(moonlight.mtp_num_layers, std::nullopt);
  EXPECT_EQ(moonlight.moe_router_topk_scaling_factor, 2.446);
  EXPECT_EQ(moonlight.layernorm_epsilon, 1e-5);
  EXPECT_EQ(moonlight.mla_latent_layernorm_epsilon, 1e-6);
  EXPECT_EQ(kimi.rope_type, config::MlaRopeType::kYarn);
  EXPECT_EQ(kimi.beta_fast, 1);
  EXPECT_EQ(kimi.rotary_scaling_factor, 32);
}

TEST(PublishedModels, WindowsScalesAndActivations) {
  EXPECT_EQ(parse(kMistral).window_size, (std::vector<std::int64_t>{4095, 0}));
  EXPECT_EQ(parse(kQwen25).window_size, std::nullopt);
  const ModelConfig oss = parse(kGptOss);
  EXPECT_EQ(oss.window_size, (std::vector<std::int64_t>{127, 0}));
  EXPECT_EQ(oss.window_attn_skip_freq, config::IntegerOrList(std::int64_t{2}));
  EXPECT_EQ(oss.position_embedding_type, config::PositionEmbedding::kYarn);
  EXPECT_EQ(oss.yarn_correction_range_round_to_int, false);
  EXPECT_EQ(oss.softmax_type, config::SoftmaxType::kLearnable);
  EXPECT_EQ(oss.activation_func, config::Activation::kQuickGelu);
  EXPECT_EQ(oss.activation_func_clamp_value, 7);
  EXPECT_EQ(oss.glu_linear_offset, 1);
  EXPECT_TRUE(oss.add_bias_linear);
  EXPECT_FALSE(oss.moe_router_pre_softmax);
  const ModelConfig gemma = parse(kGemma2);
  EXPECT_EQ(gemma.softmax_scale, 1.0 / 16);
  EXPECT_EQ(gemma.attn_logit_softcapping, 50);
  EXPECT_EQ(gemma.final_logit_softcapping, 30);
  EXPECT_TRUE(gemma.layernorm_zero_centered_gamma);
  EXPECT_TRUE(gemma.scale_embeddings_by_hidden_size);
  EXPECT_TRUE(gemma.sandwich_layernorm);
  EXPECT_TRUE(gemma.share_embeddings_and_output_weights);
  EXPECT_EQ(gemma.activation_func, config::Activation::kGeluTanh);
  const ModelConfig moe = parse(kQwen3Moe);
  EXPECT_TRUE(moe.qk_layernorm);
  EXPECT_FALSE(moe.moe_router_pre_softmax);
  EXPECT_EQ(parse(kMixtral).moe_aux_loss_coeff, std::vector<double>{0.02});
}

}  // namespace
}  // namespace pharos::hf
