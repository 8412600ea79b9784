#include "pharos/hf/families/parts/names.h"

#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

std::vector<NameRule> backbone_names() {
  return {
      {"embedding.word_embeddings.weight", "embed_tokens.weight"},
      {"decoder.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight"},
      {"decoder.layers.{}.pre_mlp_layernorm.weight", "layers.{}.post_attention_layernorm.weight"},
      {"decoder.final_layernorm.weight", "norm.weight"},
      {.piece = "output_layer.weight", .tensor = "lm_head.weight", .is_head = true},
  };
}

std::vector<NameRule> attention_names() {
  return {
      {"decoder.layers.{}.self_attention.q.weight", "layers.{}.self_attn.q_proj.weight"},
      {"decoder.layers.{}.self_attention.k.weight", "layers.{}.self_attn.k_proj.weight"},
      {"decoder.layers.{}.self_attention.v.weight", "layers.{}.self_attn.v_proj.weight"},
      {"decoder.layers.{}.self_attention.q.bias", "layers.{}.self_attn.q_proj.bias"},
      {"decoder.layers.{}.self_attention.k.bias", "layers.{}.self_attn.k_proj.bias"},
      {"decoder.layers.{}.self_attention.v.bias", "layers.{}.self_attn.v_proj.bias"},
      {"decoder.layers.{}.self_attention.linear_proj.weight", "layers.{}.self_attn.o_proj.weight"},
      {"decoder.layers.{}.self_attention.linear_proj.bias", "layers.{}.self_attn.o_proj.bias"},
  };
}

std::vector<NameRule> head_norm_names() {
  return {
      {"decoder.layers.{}.self_attention.q_layernorm.weight", "layers.{}.self_attn.q_norm.weight"},
      {"decoder.layers.{}.self_attention.k_layernorm.weight", "layers.{}.self_attn.k_norm.weight"},
  };
}

std::vector<NameRule> mlp_names() {
  return {
      {"decoder.layers.{}.mlp.gate.weight", "layers.{}.mlp.gate_proj.weight"},
      {"decoder.layers.{}.mlp.up.weight", "layers.{}.mlp.up_proj.weight"},
      {"decoder.layers.{}.mlp.linear_fc2.weight", "layers.{}.mlp.down_proj.weight"},
      {"decoder.layers.{}.mlp.gate.bias", "layers.{}.mlp.gate_proj.bias"},
      {"decoder.layers.{}.mlp.up.bias", "layers.{}.mlp.up_proj.bias"},
      {"decoder.layers.{}.mlp.linear_fc2.bias", "layers.{}.mlp.down_proj.bias"},
  };
}

std::vector<NameRule> expert_names() {
  return {
      {"decoder.layers.{}.mlp.router.weight", "layers.{}.mlp.gate.weight"},
      {"decoder.layers.{}.mlp.experts.gate.weight", "layers.{}.mlp.experts.{e}.gate_proj.weight"},
      {"decoder.layers.{}.mlp.experts.up.weight", "layers.{}.mlp.experts.{e}.up_proj.weight"},
      {"decoder.layers.{}.mlp.experts.linear_fc2.weight", "layers.{}.mlp.experts.{e}.down_proj.weight"},
  };
}

std::vector<NameRule> llama_names() { return joined(joined(backbone_names(), attention_names()), mlp_names()); }

std::vector<const char*> inverse_frequencies() {
  return {"layers.{}.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"};
}

}  // namespace pharos::hf
