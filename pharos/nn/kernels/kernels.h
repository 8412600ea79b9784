// Loops over contiguous float32 rows on the CPU that ATen would need many passes for. Callers choose them only for
// tensors that fit (float32, CPU); everything else takes the ATen path beside each call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pharos::nn::kernels {

/// True when `tensor` is float32 on the CPU.
bool fits(const at::Tensor& tensor);

/// RMSNorm over the last axis. input: [rows, width] contiguous; weight: [width]; output like input; inverse_rms:
/// [rows].
void rms_norm_forward(const at::Tensor& input, const at::Tensor& weight, double epsilon, at::Tensor& output,
                      at::Tensor& inverse_rms);

/// Adds d loss/d weight to weight_grad [width] (may be undefined) and writes d loss/d input.
void rms_norm_backward(const at::Tensor& output_grad, const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& inverse_rms, at::Tensor& input_grad, at::Tensor& weight_grad);

/// Rotates pairs of the 2·half elements of each head from `first` on and copies the others, changing the layout.
/// input: [batch, tokens, heads, width], last axis contiguous; output: [batch, heads, tokens, width] contiguous.
/// cosine, sine: [batch or 1, tokens, half] contiguous; `direction` is +1, or -1 for the inverse rotation.
void rotate_to_heads(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                     float direction, std::int64_t first, at::Tensor& output);

/// The same from [batch, heads, tokens, width] (any strides, last axis contiguous) to [batch, tokens, heads, width].
void rotate_to_tokens(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                      float direction, std::int64_t first, at::Tensor& output);

/// silu(gate) up, times each row's weight if `weights` [rows] is defined. input: [rows, 2 width] contiguous, gate
/// before up; output: [rows, width] contiguous.
void swiglu_forward(const at::Tensor& input, const at::Tensor& weights, at::Tensor& output);

/// output_grad: [rows, width] contiguous. Writes input_grad, like input, and, with weights, weights_grad [rows].
void swiglu_backward(const at::Tensor& output_grad, const at::Tensor& input, const at::Tensor& weights,
                     at::Tensor& input_grad, at::Tensor& weights_grad);

/// table[indices[i]] += rows[i], in the order of i. table: [entries, width]; indices: [n] int64; rows: [n, width].
void add_rows(at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows);

}  // namespace pharos::nn::kernels
