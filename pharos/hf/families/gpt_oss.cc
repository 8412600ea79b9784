// GPT-OSS: experts with biases in every layer, stored together and [in, out]; attention sinks; a window in every other
// layer; YaRN.
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

constexpr const char* kRotary =
    R"({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096})";

/// gate sigmoid(1.702 gate) (up + 1) with gate and up cut off at the limit. hidden_act is not looked at, as in
/// transformers.
Row clamped_gate() {
  return {[](Reader& reader, ModelConfig& model) {
            model.activation_func = config::Activation::kQuickGelu;
            model.glu_linear_offset = 1;
            model.activation_func_clamp_value = reader.positive("swiglu_limit", 7);
            reader.expect("swiglu_alpha", 1.702);
          },
          [](const ModelConfig& model, json& written) {
            written["hidden_act"] = "silu";
            if (model.activation_func_clamp_value) written["swiglu_limit"] = *model.activation_func_clamp_value;
          }};
}

/// Linear layers other than attention's always have biases.
Row biases() {
  return {[](Reader& reader, ModelConfig& model) {
            model.add_bias_linear = reader.flag("attention_bias", true);
            model.add_mlp_bias = true;
          },
          [](const ModelConfig& model, json& written) {
            written["attention_bias"] = model.add_qkv_bias || model.add_bias_linear;
          }};
}

/// Both halves of a gated pair lie in one tensor, row by row in turn.
NameRule half(const char* piece, const char* tensor, bool transposed, int part) {
  return {
      .piece = piece, .tensor = tensor, .transposed = transposed, .part = part, .num_parts = 2, .interleaved = true};
}

std::vector<NameRule> expert_names_of_gpt_oss() {
  return {
      {"decoder.layers.{}.self_attention.core_attention.softmax_offset", "layers.{}.self_attn.sinks"},
      {"decoder.layers.{}.mlp.router.weight", "layers.{}.mlp.router.weight"},
      {"decoder.layers.{}.mlp.router.bias", "layers.{}.mlp.router.bias"},
      half("decoder.layers.{}.mlp.experts.gate.weight", "layers.{}.mlp.experts.gate_up_proj", true, 0),
      half("decoder.layers.{}.mlp.experts.up.weight", "layers.{}.mlp.experts.gate_up_proj", true, 1),
      half("decoder.layers.{}.mlp.experts.gate.bias", "layers.{}.mlp.experts.gate_up_proj_bias", false, 0),
      half("decoder.layers.{}.mlp.experts.up.bias", "layers.{}.mlp.experts.gate_up_proj_bias", false, 1),
      {"decoder.layers.{}.mlp.experts.linear_fc2.weight", "layers.{}.mlp.experts.down_proj", true},
      {"decoder.layers.{}.mlp.experts.linear_fc2.bias", "layers.{}.mlp.experts.down_proj_bias"},
  };
}

}  // namespace

const Family& gpt_oss() {
  static const Family family{
      .model_type = "gpt_oss",
      .architectures = {"GptOssForCausalLM", "GptOssModel"},
      .rows = joined(
          llama_like({.num_key_value_heads = 8,
                      .head_dim = 64,
                      .rms_norm_eps = 1e-5,
                      .rotary = {.theta = 1.5e5, .absent = kRotary}}),
          {biases(), clamped_gate(), constant(&ModelConfig::softmax_type, config::SoftmaxType::kLearnable),
           window_in_other_layers(128), count("num_local_experts|num_experts", &ModelConfig::num_moe_experts),
           count("num_experts_per_tok", &ModelConfig::moe_router_topk), experts_in_every_layer(), softmax_over_chosen(),
           constant(&ModelConfig::moe_router_load_balancing_type, std::vector<std::string>{"none"}),
           constant(&ModelConfig::moe_aux_loss_coeff, std::vector<double>{0})}),
      .names = joined(joined(backbone_names(), attention_names()), expert_names_of_gpt_oss()),
  };
  return family;
}

}  // namespace pharos::hf
