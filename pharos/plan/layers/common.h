// What the estimates of attention, experts and the layers around them share.
#pragma once

#include "pharos/config/model_config.h"
#include "pharos/plan/activations.h"

namespace pharos::plan {

inline constexpr double kFloatBytes = 4;

/// Selective recomputation asks for this module.
bool recomputes(const config::ModelConfig& model, const char* module);

/// Attention in one kernel that keeps no probabilities (nn::core_attention).
bool is_fused(const config::ModelConfig& model);

/// Attention of this layer takes nn::kernels::causal_attention(): it pads nothing, and its result is laid out by token,
/// as the output projection reads it.
bool has_causal_kernel(const config::ModelConfig& model, const LayerShape& shape, std::int64_t layer);

/// Bytes of the probabilities and masks that attention without a fused kernel keeps.
double kept_probabilities(const config::ModelConfig& model, const LayerShape& shape);

/// Most bytes of scores and their gradients in the backward pass without a fused kernel.
double score_gradient_bytes(const config::ModelConfig& model, const LayerShape& shape);

/// Mean (LayerNorm) and inverse deviation of each row, fp32.
double norm_statistics(const config::ModelConfig& model, double rows);

/// Tensors of the inner width that an MLP keeps: first product, what the activation keeps, input of the second product.
double kept_inner_tensors(const config::ModelConfig& model);

/// True where gate and up are one function, nn::swiglu(), which keeps its input alone.
bool is_swiglu(const config::ModelConfig& model);

}  // namespace pharos::plan
