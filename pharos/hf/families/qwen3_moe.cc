// Qwen 3 with experts.
#include "pharos/config/derived.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

/// Layer i has experts when it is not in mlp_only_layers and i + 1 is a multiple of decoder_sparse_step.
Row layers_with_experts() {
  return {[](Reader& reader, ModelConfig& model) {
            const std::int64_t step = reader.count("decoder_sparse_step").value_or(1);
            std::vector<std::int64_t> pattern;
            for (std::int64_t i = 0; i < model.num_layers.value_or(0); ++i) pattern.push_back((i + 1) % step == 0);
            if (const json* dense = reader.find("mlp_only_layers")) {
              for (const json& layer : dense->is_array() ? *dense : json::array({*dense})) {
                const bool is_layer = layer.is_number_integer() && layer >= 0 && layer < pattern.size();
                if (is_layer) {
                  pattern[layer.get<std::size_t>()] = 0;
                } else {
                  reader.report("mlp_only_layers has " + layer.dump() + ", which is not a layer");
                }
              }
            }
            model.moe_layer_freq = pattern;
          },
          [](const ModelConfig& model, json& written) {
            json dense = json::array();
            for (std::int64_t i = 0; model.num_moe_experts && i < model.num_layers.value_or(0); ++i) {
              if (!config::is_moe_layer(model, i)) dense.push_back(i);
            }
            written["mlp_only_layers"] = dense;
            written["decoder_sparse_step"] = 1;
          }};
}

/// Without it the weights are those of the softmax over all experts.
Row norm_topk_prob() {
  return {[](Reader& reader, ModelConfig& model) {
            model.moe_router_pre_softmax = !reader.flag("norm_topk_prob", false);
            if (model.moe_router_pre_softmax) model.moe_router_norm_topk_prob = false;
          },
          [](const ModelConfig& model, json& written) {
            written["norm_topk_prob"] =
                !model.moe_router_pre_softmax || model.moe_router_norm_topk_prob.value_or(false);
          }};
}

}  // namespace

const Family& qwen3_moe() {
  static const Family family{
      .model_type = "qwen3_moe",
      .architectures = {"Qwen3MoeForCausalLM", "Qwen3MoeModel"},
      .rows = joined(llama_like({.num_key_value_heads = 4}),
                     {constant(&ModelConfig::qk_layernorm, true), attention_bias(false), window_if_used(),
                      count("num_experts|num_local_experts", &ModelConfig::num_moe_experts),
                      count("num_experts_per_tok", &ModelConfig::moe_router_topk),
                      count("moe_intermediate_size", &ModelConfig::moe_ffn_hidden_size), layers_with_experts(),
                      softmax_over_chosen(), norm_topk_prob(), balancing_loss("router_aux_loss_coef", 0.001)}),
      .names = joined(joined(llama_names(), head_norm_names()), expert_names()),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
