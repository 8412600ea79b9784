#include "pharos/hf/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pharos/config/schema/schema.h"
#include "pharos/hf/architecture.h"
#include "pharos/hf/families/family.h"
#include "pharos/hf/test_support.h"
#include "pharos/hf/transfer/hf_config_file.h"

namespace pharos::hf {
namespace {

using nlohmann::json;
using test::error_of;
using test::fixture;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

json base_config(const char* family) { return base::read_json_file(fixture(family) / "config.json"); }

HfModel parse(const json& parsed) { return parse_hf_config(parsed, "config.json"); }

std::vector<std::string> differences(const config::ModelConfig& a, const config::ModelConfig& b) {
  return architecture_differences(a, b, "other");
}

TEST(HfConfig, BothSpellingsMeanTheSame) {
  for (const char* name : test::kFixtures) {
    const auto a = parse(base_config(name)), b = parse(base::read_json_file(test::other_config(name)));
    EXPECT_EQ(a.family, b.family) << name;
    EXPECT_THAT(differences(a.model, b.model), IsEmpty()) << name;
    EXPECT_EQ(a.model.params_dtype, b.model.params_dtype) << name;
  }
}

/// Every field of the section model is what it was, not only those of the architecture.
TEST(HfConfig, WhatIsWrittenIsReadBack) {
  for (const char* name : test::kFixtures) {
    const HfModel hf = parse(base_config(name));
    const HfModel back = parse(to_hf_config(hf));
    EXPECT_EQ(back.family, hf.family) << name;
    config::RunConfig first, second;
    first.model = hf.model;
    second.model = back.model;
    for (const config::Field& field : config::schema().fields()) {
      if (field.section != "model" || !field.member) continue;
      EXPECT_TRUE(field.read(first) == field.read(second)) << name << ": " << field.name;
    }
  }
}

TEST(HfConfig, WritesWhatTransformersWrote) {
  for (const char* name : test::kFixtures) {
    const bool is_new = base_config(name).contains("rope_parameters") || std::string(name).starts_with("gpt2");
    const json original = is_new ? base_config(name) : base::read_json_file(test::other_config(name));
    const json written = to_hf_config(parse(original));
    for (const auto& [key, value] : written.items()) {
      if (!original.contains(key) || key == "rope_parameters") continue;  // optional parts of it differ
      EXPECT_EQ(original[key].is_null() ? json() : value, original[key]) << name << ": " << key;
    }
  }
}

TEST(HfConfig, FindsTheFamilyOfAModel) {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v2",
                           "deepseek_v3", "gemma2", "gpt_oss"})
    EXPECT_STREQ(family_name(*express(parse(base_config(name)).model).family), name);
  EXPECT_STREQ(find_family("kimi_k2").model_type, "deepseek_v3");
  EXPECT_THAT(error_of([] { find_family("bert"); }), HasSubstr("There is no family 'bert'"));
}

TEST(HfConfig, OtherSpellingsOfAModelAreWrittenAlike) {
  config::ModelConfig model = parse(base_config("llama")).model;
  const json written = to_hf_config({&find_family("llama"), model});
  model.kv_channels.reset();   // hidden_size / heads
  model.softmax_scale = 0.25;  // the default of heads of 16
  model.add_mlp_bias = false;
  model.tensor_model_parallel_size = 2;
  EXPECT_EQ(to_hf_config({&find_family("llama"), model}), written);
  config::ModelConfig mixtral = parse(base_config("mixtral")).model;
  mixtral.moe_layer_freq = std::vector<std::int64_t>{1, 1};
  mixtral.moe_router_pre_softmax = true;  // and divided by the sum: the softmax over the chosen
  mixtral.moe_router_norm_topk_prob = true;
  EXPECT_STREQ(family_name(*express(mixtral).family), "mixtral");
}

TEST(HfConfig, NamesEveryFieldThatAFamilyCannotExpress) {
  config::ModelConfig model = parse(base_config("llama")).model;
  model.hidden_dropout = 0.1;
  model.add_qkv_bias = true;  // without one in the output projection
  model.qk_layernorm = true;
  model.moe_shared_expert_gate = true;  // no effect: no experts
  const std::string error = error_of([&] { to_hf_config({&find_family("llama"), model}); });
  for (const char* part : {"The family llama cannot express", "model.hidden_dropout = 0.1 (llama: 0",
                           "model.qk_layernorm = true", "model.add_attention_output_bias = false (llama: true)"})
    EXPECT_THAT(error, HasSubstr(part));
  EXPECT_THAT(error, Not(HasSubstr("shared_expert_gate")));
  EXPECT_THAT(error_of([&] { express(model); }),
              HasSubstr("No supported family can express this model; the closest is"));
  model.vocab_size.reset();
  EXPECT_THAT(error_of([&] { express(model); }), HasSubstr("without model.vocab_size"));

  config::ModelConfig moe = parse(base_config("deepseek_v3")).model;
  moe.moe_router_score_function = config::RouterScoreFunction::kSoftmax;
  moe.moe_layer_freq = std::vector<std::int64_t>{0, 1, 0};
  *moe.moe_shared_expert_intermediate_size += 1;
  const std::string other = error_of([&] { to_hf_config({&find_family("deepseek_v3"), moe}); });
  for (const char* part : {"moe_router_score_function", "moe_layer_freq", "moe_shared_expert_intermediate_size"})
    EXPECT_THAT(other, HasSubstr(part));
}

TEST(HfConfig, AbsentKeysHaveTheDefaultsOfTheFamily) {
  const char* geometry = R"({"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 32, "vocab_size": 10,
    "intermediate_size": 64, "max_position_embeddings": 99, "num_experts_per_tok": 2, "num_local_experts": 16,
    "moe_intermediate_size": 8, "n_shared_experts": 1, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
    "v_head_dim": 4})";
  const auto of = [&](const char* family) {
    json parsed = json::parse(geometry);
    parsed["model_type"] = family;
    return parse(parsed).model;
  };
  EXPECT_EQ(of("llama").num_query_groups, 32);
  EXPECT_EQ(of("llama").rotary_base, 1e4);
  EXPECT_EQ(of("mistral").num_query_groups, 8);
  EXPECT_EQ(of("mistral").window_size, (std::vector<std::int64_t>{4095, 0}));
  EXPECT_EQ(of("mixtral").rotary_base, 1e6);
  EXPECT_EQ(of("mixtral").window_size, std::nullopt);
  EXPECT_EQ(of("mixtral").layernorm_epsilon, 1e-5);
  EXPECT_EQ(of("qwen3").kv_channels, 128);
  EXPECT_EQ(of("qwen3_moe").kv_channels, 2);
  EXPECT_TRUE(of("qwen3_moe").moe_router_pre_softmax);
  EXPECT_EQ(of("gemma2").softmax_scale, 1.0 / 16);
  EXPECT_EQ(of("gemma2").window_attn_skip_freq, config::IntegerOrList(std::int64_t{2}));
  EXPECT_EQ(of("gpt_oss").yarn_rotary_scaling_factor, 32);
  EXPECT_EQ(of("gpt_oss").rotary_base, 1.5e5);
  EXPECT_EQ(of("deepseek_v2").q_lora_rank, 1536);
  EXPECT_EQ(of("deepseek_v2").moe_router_num_groups, std::nullopt);
  EXPECT_EQ(of("deepseek_v3").moe_router_num_groups, 8);
  EXPECT_EQ(of("deepseek_v3").moe_layer_freq, config::IntegerOrList(std::vector<std::int64_t>{0, 0, 0, 1}));
  EXPECT_EQ(of("deepseek_v3").moe_router_topk_scaling_factor, 2.5);
  EXPECT_EQ(of("deepseek_v3").mtp_num_layers, std::nullopt);
}

/// What transformers multiplies cosines and sines with (modeling_rope_utils) and the scores of latent attention with.
TEST(HfConfig, YarnScales) {
  json changed = base_config("deepseek_v2");  // legacy spelling
  json& rope = changed["rope_scaling"];
  const auto model = [&] { return parse(changed).model; };
  rope.erase("mscale_all_dim");  // mscale alone does not act
  EXPECT_EQ(model().mscale, 1);
  EXPECT_EQ(model().mscale_all_dim, 0);
  EXPECT_EQ(model().rope_attention_factor, std::nullopt);
  rope.erase("mscale");
  rope["mscale_all_dim"] = 0.707;  // acts on the scores, not on cosines
  EXPECT_EQ(model().mscale_all_dim, 0.707);
  EXPECT_NEAR(*model().rope_attention_factor, 0.1 * std::log(40.0) + 1, 1e-12);
  EXPECT_THAT(differences(parse(to_hf_config(parse(changed))).model, model()), IsEmpty());
  rope["mscale"] = 0.5;
  rope["attention_factor"] = 1.25;
  EXPECT_EQ(model().rope_attention_factor, 1.25);
  json plain = base_config("llama");
  plain["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  EXPECT_EQ(parse(plain).model.position_embedding_type, config::PositionEmbedding::kYarn);
  EXPECT_EQ(parse(plain).model.yarn_original_max_position_embeddings, 32);
  EXPECT_EQ(parse(plain).model.yarn_correction_range_round_to_int, true);
  EXPECT_EQ(parse(plain).model.yarn_mscale, std::nullopt);
}

TEST(HfConfig, WindowsByLayer) {
  json changed = base_config("qwen2");
  changed["num_hidden_layers"] = 4;
  changed["use_sliding_window"] = true;
  changed["sliding_window"] = 16;
  changed["max_window_layers"] = 3;
  changed.erase("layer_types");
  const auto upper = parse(changed).model;
  EXPECT_EQ(upper.window_size, (std::vector<std::int64_t>{15, 0}));
  EXPECT_EQ(upper.window_attn_skip_freq, config::IntegerOrList(std::vector<std::int64_t>{0, 0, 0, 1}));
  EXPECT_THAT(differences(parse(to_hf_config(parse(changed))).model, upper), IsEmpty());
  changed["max_window_layers"] = 4;
  EXPECT_EQ(parse(changed).model.window_size, std::nullopt);
  changed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_EQ(parse(changed).model.window_attn_skip_freq, config::IntegerOrList(std::int64_t{2}));
}

TEST(HfConfig, Gpt2) {
  const HfModel hf = parse(base_config("gpt2"));
  const config::ModelConfig& model = hf.model;
  EXPECT_STREQ(family_name(*hf.family), "gpt2");
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
  EXPECT_STREQ(family_name(*parse(changed).family), "qwen2");
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
      {"llama", R"({"model_type": "bert"})", "the family is \"bert\""},
      {"llama", R"({"model_type": "bert"})", "gpt2 (GPT2LMHeadModel), llama (LlamaForCausalLM), mistral"},
      {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", "not a causal language model"},
      {"llama", R"({"architectures": "LlamaForCausalLM"})",
       "architectures = \"LlamaForCausalLM\" is not a list of names"},
      {"llama", R"({"architectures": [7]})", "architectures = [7] is not a list of names"},
      {"llama", R"({"attention_dropout": 1})", "attention_dropout = 1 is not a probability below 1"},
      {"gpt2", R"({"attn_pdrop": 1.5})", "attn_pdrop = 1.5 is not a probability below 1"},
      {"gpt2", R"({"resid_pdrop": 2})", "resid_pdrop = 2 is not a probability below 1"},
      {"llama", R"({"rope_parameters": {"rope_theta": 1e308}})", "rope_theta = 1e+308 is not a number from 1.0 to"},
      {"llama", R"({"rope_parameters": {"rope_theta": 0.5}})", "rope_theta = 0.5 is not a number from 1.0 to"},
      {"llama", R"({"rope_parameters": {"rope_type": "linear", "factor": 0.5}})",
       "factor = 0.5 is not a number from 1.0"},
      {"llama", R"({"rope_parameters": {"rope_type": "llama3", "factor": 1e300}})", "factor = 1e+300 is not a number"},
      {"gpt_oss", R"({"rope_parameters": {"rope_type": "yarn", "factor": 0.1}})",
       "factor = 0.1 is not a number from 1.0"},
      {"deepseek_v2", R"({"rope_scaling": {"type": "yarn", "factor": 1e9}})", "factor = 1000000000.0 is not a number"},
      {"llama", R"({"hidden_size": null})", "hidden_size is missing"},
      {"llama", R"({"hidden_size": "64"})", "hidden_size = \"64\" is not a whole number from 1 to"},
      {"llama", R"({"num_hidden_layers": 2147483648})",
       "num_hidden_layers = 2147483648 is not a whole number from 1 to 10000"},
      {"llama", R"({"vocab_size": -1})", "vocab_size = -1"},
      {"llama", R"({"num_key_value_heads": 3})", "not divisible by num_key_value_heads 3"},
      {"llama", R"({"head_dim": 15})", "odd"},
      {"llama", R"({"hidden_act": "mish"})", "hidden_act = mish"},
      {"llama", R"({"sliding_window": 16})", "sliding_window = 16"},
      {"llama", R"({"dtype": "float8_e4m3fn"})", "dtype = float8_e4m3fn"},
      {"llama", R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {"llama", R"({"quantization_config": {}})", "quantised"},
      {"llama", R"({"quantization_config": {}})", "Take a copy of the model with its weights in bf16."},
      {"llama", R"({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4}})",
       "rope_type = dynamic"},
      {"llama", R"({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}})", "factor is missing"},
      {"llama", R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})", "differs by kind of layer"},
      {"llama",
       R"({"rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "not above low_freq_factor"},
      {"qwen3", R"({"layer_types": ["full_attention", "sliding_attention"]})", "sliding_window is not set"},
      {"qwen3", R"({"layer_types": ["full_attention"]})", "one entry for each of 2 layers"},
      {"qwen3", R"({"layer_types": ["full_attention", "linear_attention"]})", "layer_types has \"linear_attention\""},
      {"llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor below 1"},
      {"mixtral", R"({"router_jitter_noise": 0.1})", "router_jitter_noise = 0.1"},
      {"mixtral", R"({"num_experts_per_tok": 5})", "num_experts_per_tok 5 is above the number of experts, 4"},
      {"qwen3_moe", R"({"mlp_only_layers": [7]})", "mlp_only_layers has 7"},
      {"deepseek_v2", R"({"topk_method": "noaux_tc"})", "topk_method = noaux_tc"},
      {"deepseek_v2", R"({"attention_bias": true})", "attention_bias = true"},
      {"deepseek_v2", R"({"mlp_bias": true})", "mlp_bias = true"},
      {"deepseek_v2", R"({"num_key_value_heads": 2})", "num_key_value_heads differs from num_attention_heads"},
      {"deepseek_v2", R"({"qk_rope_head_dim": 7})", "qk_rope_head_dim 7 is odd"},
      {"deepseek_v2", R"({"n_shared_experts": 0})", "n_shared_experts = 0"},
      {"deepseek_v2", R"({"moe_layer_freq": 2})", "moe_layer_freq = 2"},
      {"deepseek_v2", R"({"rope_scaling": {"type": "yarn", "truncate": false}})", "truncate = false"},
      {"deepseek_v2", R"({"rope_scaling": {"type": "linear"}})", "rope_type = linear is not supported (default, yarn)"},
      {"deepseek_v3", R"({"n_group": 5})", "not divisible by n_group 5"},
      {"deepseek_v3", R"({"topk_group": 9})", "topk_group 9 is above n_group"},
      {"deepseek_v3", R"({"topk_group": 1, "num_experts_per_tok": 5})", "above the number of experts in topk_group 1"},
      {"deepseek_v3", R"({"scoring_func": "softmax"})", "scoring_func = \"softmax\""},
      {"gemma2", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention = true"},
      {"gpt_oss", R"({"swiglu_alpha": 1.0})", "swiglu_alpha = 1.0"},
      {"gpt2", R"({"scale_attn_by_inverse_layer_idx": true})", "scale_attn_by_inverse_layer_idx"},
      {"gpt2", R"({"embd_pdrop": 0.1})", "embd_pdrop and resid_pdrop differ"},
      {"mistral", R"({"layer_types": ["full_attention"]})", "one entry for each of"},
      {"llama", R"({"eos_token_id": "</s>"})", "eos_token_id = \"</s>\" is not a token id"},
      {"llama", R"({"eos_token_id": [1.5, 2]})", "eos_token_id = [1.5,2] is not a token id"},
      {"llama", R"({"dtype": "torch.int8"})", "dtype = int8"},
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

TEST(HfConfig, ReadsWhereADocumentEnds) {
  struct Case {
    const char* value;
    std::optional<std::int64_t> end;
  };
  for (const Case& c :
       {Case{"null", {}}, {"2", 2}, {"[3, 2]", 3}, {"[]", {}}, {"-1", {}}, {"[-1, 5]", 5}, {"1000000", {}}}) {
    json changed = base_config("llama");
    changed["eos_token_id"] = json::parse(c.value);
    EXPECT_EQ(parse(changed).end_of_document, c.end) << c.value;
  }
}

/// transformers takes a mistral file with layer_types for a Ministral.
TEST(HfConfig, MistralMayHaveAWindowInSomeLayers) {
  json changed = base_config("mistral");
  const auto num_layers = changed["num_hidden_layers"].get<std::size_t>();
  ASSERT_GE(num_layers, 2u);
  json types(num_layers, "sliding_attention");
  changed["layer_types"] = types;
  HfModel every = parse(changed);
  EXPECT_EQ(to_hf_config(every), to_hf_config(parse(base_config("mistral"))));
  types[0] = "full_attention";
  changed["layer_types"] = types;
  HfModel some = parse(changed);
  EXPECT_EQ(to_hf_config(some)["layer_types"], types);
  EXPECT_TRUE(some.model.window_attn_skip_freq);
  some.model.window_size.reset();
  some.model.window_attn_skip_freq.reset();
  EXPECT_FALSE(change_hf_config(changed, parse(changed), some).contains("layer_types"));
  every.model.window_size.reset();
  changed["layer_types"] = json(num_layers, "sliding_attention");
  EXPECT_FALSE(change_hf_config(changed, parse(changed), every).contains("layer_types"));
  changed["sliding_window"] = nullptr;
  EXPECT_THAT(error_of([&] { parse(changed); }), HasSubstr("layer_types has sliding_attention, but"));
}

TEST(HfConfig, OfTwoSpellingsOfRotaryScalingTheOlderCounts) {
  json changed = base_config("llama");
  changed["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  changed["rope_scaling"] = json::object();
  EXPECT_EQ(parse(changed).model.rotary_base, 5e5);
  changed["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 3.0}};
  const config::ModelConfig model = parse(changed).model;
  EXPECT_EQ(model.seq_len_interpolation_factor, 3.0);
  EXPECT_EQ(model.rotary_base, 1e4);
}

TEST(HfConfig, ScaleOfScoresComesBackExactly) {
  for (const double scalar : {256.0, 224.0, 24.5, 144.0, 0.3, 1e-3, 12345.678, 1e16}) {
    json changed = base_config("gemma2");
    changed["query_pre_attn_scalar"] = scalar;
    const HfModel hf = parse(changed);
    const json written = to_hf_config(hf);
    EXPECT_NEAR(written["query_pre_attn_scalar"].get<double>(), scalar, 1e-9 * scalar);
    EXPECT_EQ(written["query_pre_attn_scalar"].is_number_integer(), scalar == std::round(scalar) && scalar < 1e15);
    EXPECT_EQ(parse(written).model.softmax_scale, hf.model.softmax_scale) << scalar;
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
