// Mixtral: Mistral with experts in every layer (bridge-config.md 4.5).
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

using config::ModelConfig;

const Family& mixtral() {
  static const Family family{
      .model_type = "mixtral",
      .architectures = {"MixtralForCausalLM", "MixtralModel"},
      .rows = joined(
          llama_like({.num_key_value_heads = 8, .rms_norm_eps = 1e-5, .rotary = {.theta = 1e6}}),
          {window_in_every_layer(std::nullopt), count("num_local_experts|num_experts", &ModelConfig::num_moe_experts),
           count("num_experts_per_tok", &ModelConfig::moe_router_topk), experts_in_every_layer(), softmax_over_chosen(),
           balancing_loss("router_aux_loss_coef", 0.001), must_be("router_jitter_noise", 0.0)}),
      .names = joined(
          joined(backbone_names(), attention_names()),
          {
              {"decoder.layers.{}.mlp.router.weight", "layers.{}.block_sparse_moe.gate.weight"},
              {"decoder.layers.{}.mlp.experts.gate.weight", "layers.{}.block_sparse_moe.experts.{e}.w1.weight"},
              {"decoder.layers.{}.mlp.experts.up.weight", "layers.{}.block_sparse_moe.experts.{e}.w3.weight"},
              {"decoder.layers.{}.mlp.experts.linear_fc2.weight", "layers.{}.block_sparse_moe.experts.{e}.w2.weight"},
          }),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
