// Declarations of one layer's parameters: names, shapes, splits and first values (Megatron's initialisation).
#pragma once

#include <memory>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"

namespace pharos::model {

/// A layer with its parameters declared but not allocated; `layer` counts from 0 over the whole model. `rank` of `mesh`
/// holds it, and computes it together with the other ranks of `parallel` and `context_parallel`; how the latter
/// exchange keys and values follows from model.cp_comm_type.
std::unique_ptr<TransformerLayer> declare_layer(const config::ModelConfig& config, std::int64_t layer,
                                                const comm::Mesh& mesh, std::int64_t rank = 0,
                                                const nn::TensorParallel& parallel = {},
                                                const nn::ContextParallel& context_parallel = {});

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
  const auto norm = [&](nn::Norm& n) {
    visit(n.weight);
    if (n.bias) visit(*n.bias);
  };
  const auto linear = [&](auto& l) {
    visit(l.weight);
    if (l.bias) visit(*l.bias);
  };
  norm(layer.input_layernorm);
  linear(layer.self_attention.qkv);
  if (layer.self_attention.q_layernorm) norm(*layer.self_attention.q_layernorm);
  if (layer.self_attention.k_layernorm) norm(*layer.self_attention.k_layernorm);
  linear(layer.self_attention.linear_proj);
  norm(layer.pre_mlp_layernorm);
  linear(layer.mlp.fc1);
  linear(layer.mlp.fc2);
}

}  // namespace pharos::model
