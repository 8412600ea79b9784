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
