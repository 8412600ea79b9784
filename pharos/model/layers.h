// Declarations of one layer's parameters: names, shapes, splits and first values (Megatron's initialisation).
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"

namespace pharos::model {

/// A layer with its parameters declared but not allocated; `layer` counts from 0 over the whole model. `rank` of `mesh`
/// holds it, and computes it together with the other ranks of `groups`. name: of its pieces; empty:
/// "decoder.layers.LAYER".
std::unique_ptr<TransformerLayer> declare_layer(const config::ModelConfig& config, std::int64_t layer,
                                                const comm::Mesh& mesh, std::int64_t rank = 0,
                                                const ParallelGroups& groups = {}, const std::string& name = "");

/// A layer of multi-token prediction; `depth` counts from 0. Its transformer layer is like the model's last one.
std::unique_ptr<PredictionLayer> declare_prediction_layer(const config::ModelConfig& config, std::int64_t depth,
                                                          const comm::Mesh& mesh, std::int64_t rank = 0,
                                                          const ParallelGroups& groups = {});

/// A norm of `width` elements whose pieces are called `name`.weight and `name`.bias. `partial`: tensor-parallel ranks
/// norm different tokens or heads, so that each sees a part of the gradient.
nn::Norm declare_norm(const config::ModelConfig& config, const std::string& name, std::int64_t width,
                      bool partial = false);

nn::Embedding declare_embedding(const config::ModelConfig& config, const nn::TensorParallel& parallel = {},
                                const nn::ContextParallel& context_parallel = {});

/// The output layer's weight [padded vocabulary, hidden]; call only when it is not tied.
tensor::Parameter declare_output_layer(const config::ModelConfig& config);

/// Calls visit(Parameter&) for every parameter of the layer, in the order of the forward pass.
template <typename Visit>
void for_each_parameter(TransformerLayer& layer, const Visit& visit) {
  const auto optional = [&](auto& parameter) {
    if (parameter) visit(*parameter);
  };
  const auto linear = [&](auto& l) {  // a linear layer or a norm
    visit(l.weight);
    optional(l.bias);
  };
  const auto optional_linear = [&](auto& l) {
    if (l) linear(*l);
  };
  linear(layer.input_layernorm);
  if (auto* attention = std::get_if<nn::SelfAttention>(&layer.self_attention)) {
    linear(attention->qkv);
    optional_linear(attention->q_layernorm);
    optional_linear(attention->k_layernorm);
    optional(attention->sinks);
    linear(attention->linear_proj);
  } else {
    auto& latent = std::get<nn::LatentAttention>(layer.self_attention);
    optional_linear(latent.linear_q_proj);
    optional_linear(latent.linear_q_down_proj);
    optional_linear(latent.q_layernorm);
    optional_linear(latent.linear_q_up_proj);
    linear(latent.linear_kv_down_proj);
    optional_linear(latent.kv_layernorm);
    linear(latent.linear_kv_up_proj);
    linear(latent.linear_proj);
  }
  optional_linear(layer.post_self_attn_layernorm);
  linear(layer.pre_mlp_layernorm);
  const auto mlp = [&](nn::Mlp& block) {
    linear(block.fc1);
    linear(block.fc2);
  };
  if (auto* moe = std::get_if<nn::Moe>(&layer.mlp)) {
    linear(moe->router);
    optional(moe->router.expert_bias);
    visit(moe->experts.fc1);
    optional(moe->experts.fc1_bias);
    visit(moe->experts.fc2);
    optional(moe->experts.fc2_bias);
    if (moe->shared_experts) mlp(*moe->shared_experts);
    optional_linear(moe->shared_expert_gate);
  } else {
    mlp(std::get<nn::Mlp>(layer.mlp));
  }
  optional_linear(layer.post_mlp_layernorm);
}

/// The same for a layer of multi-token prediction.
template <typename Visit>
void for_each_parameter(PredictionLayer& layer, const Visit& visit) {
  const auto norm = [&](nn::Norm& n) {
    visit(n.weight);
    if (n.bias) visit(*n.bias);
  };
  norm(layer.embedding_norm);
  norm(layer.hidden_norm);
  visit(layer.projection.weight);
  for_each_parameter(*layer.layer, visit);
  norm(layer.final_layernorm);
}

}  // namespace pharos::model
