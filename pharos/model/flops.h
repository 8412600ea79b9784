// Floating-point operations of training: what throughput and MFU are computed from.
#pragma once

#include <cstdint>

#include "pharos/config/model_config.h"

namespace pharos::model {

/// What the formulas need to know of the sequences of a batch, whole or packed: the sum of their lengths and the sum of
/// the squares of their lengths, in tokens.
struct SequenceSums {
  double tokens = 0;   ///< T = sum L_i
  double squares = 0;  ///< Q2 = sum L_i^2

  /// `batch` sequences of `length` tokens each.
  static SequenceSums unpacked(std::int64_t batch, std::int64_t length);
};

/// Tokens that a token of layer `layer` (from 0) attends to at most, itself included; 0: all before it. By
/// model.window_size and model.window_attn_skip_freq.
std::int64_t attention_window(const config::ModelConfig& model, std::int64_t layer);

/// Operations of forward and backward passes over these sequences, with Megatron's count (megatron-telemetry.md 9.6):
/// backward = 2 x forward, multiply-add = 2, attention causal; recomputation, norms, router and embedding look-up do
/// not count. A layer with a window of W tokens (the token itself included) attends to W - W (W-1) / (2 s) tokens on
/// average, s = Q2 / T. `model` must be valid and complete.
double training_flops(const config::ModelConfig& model, const SequenceSums& sequences);
/// The same of `global_batch_size` sequences of model.seq_length tokens.
double training_flops(const config::ModelConfig& model, std::int64_t global_batch_size);

/// As training_flops(), but every token attends to every token: neither the causal mask nor a window is taken off
/// (the convention of Chowdhery et al. 2022, PaLM, appendix B).
double full_attention_training_flops(const config::ModelConfig& model, const SequenceSums& sequences);
double full_attention_training_flops(const config::ModelConfig& model, std::int64_t global_batch_size);

/// Operations of a forward pass for one token of a sequence of model.seq_length tokens, counted as training_flops()
/// does. The backward pass of each takes twice as many; of matrices one half is the gradient of their weights.
struct ForwardFlops {
  double matrices = 0;   ///< products with weights
  double attention = 0;  ///< products of activations with each other
};

/// Of layer `layer`, from 0.
ForwardFlops layer_forward_flops(const config::ModelConfig& model, std::int64_t layer);
/// Of its MLP alone: dense, or of topk and shared experts.
double mlp_forward_flops(const config::ModelConfig& model, std::int64_t layer);
/// Of what comes after the layers: the output layer, and multi-token prediction with its own layers.
ForwardFlops output_forward_flops(const config::ModelConfig& model);

}  // namespace pharos::model
