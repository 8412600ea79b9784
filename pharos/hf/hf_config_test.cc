#include "pharos/hf/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/hf/test_support.h"

namespace pharos::hf {
namespace {

using nlohmann::json;
using test::error_of;
using test::fixture;
using ::testing::HasSubstr;

json base_config(const char* family) { return base::read_json_file(fixture(family) / "config.json"); }

HfModel parse(const json& parsed) { return parse_hf_config(parsed, "config.json"); }

TEST(HfConfig, BothSpellingsMeanTheSame) {
  for (const char* name : {"gpt2", "llama", "llama3_tied", "qwen2", "qwen3"}) {
    const auto a = parse(base_config(name)).model, b = parse(base::read_json_file(test::other_config(name))).model;
    EXPECT_EQ(a.rotary_base, b.rotary_base) << name;
    EXPECT_EQ(a.rope_scaling, b.rope_scaling) << name;
    EXPECT_EQ(a.rope_scaling_factor, b.rope_scaling_factor) << name;
    EXPECT_EQ(a.rope_scaling_original_max_position_embeddings, b.rope_scaling_original_max_position_embeddings) << name;
    EXPECT_EQ(a.params_dtype, b.params_dtype) << name;
    EXPECT_EQ(a.num_layers, b.num_layers) << name;
  }
}

TEST(HfConfig, Gpt2) {
  const auto [family, model] = parse(base_config("gpt2"));
  EXPECT_EQ(family, Family::kGpt2);
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_EQ(model.ffn_hidden_size, 256);  // n_inner null: 4 × n_embd
  EXPECT_EQ(model.seq_length, 64);
  EXPECT_EQ(model.normalization, config::Normalization::kLayerNorm);
  EXPECT_EQ(model.activation_func, config::Activation::kGeluTanh);
  EXPECT_EQ(model.position_embedding_type, config::PositionEmbedding::kLearnedAbsolute);
  EXPECT_TRUE(model.add_bias_linear);
  EXPECT_TRUE(model.share_embeddings_and_output_weights);
}

TEST(HfConfig, LlamaFamily) {
  const auto llama3 = parse(base_config("llama3_tied")).model;
  EXPECT_TRUE(llama3.rope_scaling);
  EXPECT_EQ(llama3.rope_scaling_factor, 8);
  EXPECT_EQ(llama3.rope_scaling_high_freq_factor, 4);
  EXPECT_EQ(llama3.rope_scaling_original_max_position_embeddings, 64);
  EXPECT_EQ(llama3.rotary_base, 500000);
  EXPECT_TRUE(llama3.share_embeddings_and_output_weights);
  const auto qwen2 = parse(base_config("qwen2")).model;
  EXPECT_TRUE(qwen2.add_qkv_bias);
  EXPECT_FALSE(qwen2.add_bias_linear);
  EXPECT_EQ(qwen2.kv_channels, 16);  // no head_dim: hidden_size / heads
  EXPECT_EQ(qwen2.layernorm_epsilon, 1e-6);
  const auto qwen3 = parse(base_config("qwen3")).model;
  EXPECT_TRUE(qwen3.qk_layernorm);
  EXPECT_EQ(qwen3.kv_channels, 24);
  EXPECT_EQ(qwen3.num_query_groups, 2);
}

TEST(HfConfig, ChangesThatAreSupported) {
  json changed = base_config("llama");
  changed["dtype"] = "bfloat16";
  changed["attention_bias"] = changed["mlp_bias"] = true;
  changed["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 20000.0}};
  changed.erase("num_key_value_heads");
  const auto model = parse(changed).model;
  EXPECT_TRUE(model.bf16);
  EXPECT_TRUE(model.add_qkv_bias);
  EXPECT_EQ(model.add_attention_output_bias, true);
  EXPECT_EQ(model.add_mlp_bias, true);
  EXPECT_FALSE(model.add_bias_linear);
  EXPECT_EQ(model.seq_len_interpolation_factor, 4.0);
  EXPECT_EQ(model.rotary_base, 20000);
  EXPECT_EQ(model.num_query_groups, 4);
  changed = base_config("qwen2");
  changed["sliding_window"] = 16;  // switched off by use_sliding_window
  EXPECT_FALSE(parse(changed).model.window_size);
  changed.erase("model_type");  // architectures decides
  EXPECT_EQ(parse(changed).family, Family::kQwen2);
  changed = json::parse(
      R"({"architectures": ["LlamaForCausalLM"], "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}, "hidden_size": 8,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32, "vocab_size": 10, "torch_dtype": "float16"})");
  EXPECT_EQ(parse(changed).model.seq_len_interpolation_factor, 2);
  EXPECT_EQ(parse(changed).model.rotary_base, 5e5);
  EXPECT_TRUE(parse(changed).model.fp16);
}

TEST(HfConfig, RefusesWhatItCannotBuild) {
  struct Case {
    const char* family;
    const char* change;
    const char* message;
  };
  const Case cases[] = {
      {"llama", R"({"model_type": "mixtral"})", "the family is \"mixtral\""},
      {"llama", R"({"model_type": "deepseek_v2"})", "gpt2 (GPT2LMHeadModel), llama (LlamaForCausalLM), qwen2"},
      {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", "not a causal language model"},
      {"llama", R"({"hidden_size": null})", "hidden_size is missing"},
      {"llama", R"({"hidden_size": "64"})", "hidden_size = \"64\" is not a whole number from 1 to"},
      {"llama", R"({"num_hidden_layers": 2147483648})",
       "num_hidden_layers = 2147483648 is not a whole number from 1 to 10000"},
      {"llama", R"({"vocab_size": -1})", "vocab_size = -1"},
      {"llama", R"({"num_key_value_heads": 3})", "not divisible by num_key_value_heads 3"},
      {"llama", R"({"head_dim": 15})", "odd"},
      {"llama", R"({"hidden_act": "mish"})", "hidden_act = mish"},
      {"llama", R"({"sliding_window": 16})", "sliding-window"},
      {"llama", R"({"dtype": "float8_e4m3fn"})", "dtype = float8_e4m3fn"},
      {"llama", R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {"llama", R"({"quantization_config": {}})", "quantised"},
      {"llama", R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4}})", "rope_type = yarn"},
      {"llama", R"({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}})", "factor is missing"},
      {"llama", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", "differs by kind of layer"},
      {"llama",
       R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "not above low_freq_factor"},
      {"qwen2", R"({"use_sliding_window": true, "sliding_window": 16})", "sliding-window"},
      {"qwen3", R"({"layer_types": ["full_attention", "sliding_attention"]})", "sliding-window"},
      {"gpt2", R"({"scale_attn_by_inverse_layer_idx": true})", "scale_attn_by_inverse_layer_idx"},
      {"gpt2", R"({"embd_pdrop": 0.1})", "embd_pdrop and resid_pdrop differ"},
      {"gpt2", R"({"n_head": 5})", "not divisible by 5 heads"},
  };
  for (const Case& item : cases) {
    json changed = base_config(item.family);
    changed.merge_patch(json::parse(item.change));
    if (std::string(item.change).find("rope_parameters") != std::string::npos)
      changed["rope_parameters"] = json::parse(item.change)["rope_parameters"];
    EXPECT_THAT(error_of([&] { parse(changed); }), HasSubstr(item.message)) << item.change;
  }
}

TEST(HfConfig, ReportsEveryProblemAtOnce) {
  json changed = base_config("qwen3");
  changed["hidden_size"] = 0;
  changed["hidden_act"] = "mish";
  changed.erase("vocab_size");
  const std::string error = error_of([&] { parse(changed); });
  for (const char* part : {"hidden_size = 0", "mish", "vocab_size is missing"}) EXPECT_THAT(error, HasSubstr(part));
}

TEST(HfConfig, NamesMissingFolderAndFile) {
  EXPECT_THAT(error_of([] { read_hf_config("/nowhere"); }), HasSubstr("'/nowhere' is not a folder"));
  EXPECT_THAT(error_of([] { read_hf_config(PHAROS_TEST_DATA); }), HasSubstr("config.json"));
}

}  // namespace
}  // namespace pharos::hf
