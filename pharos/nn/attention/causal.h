// Causal attention of float32 heads on the CPU in blocks (FlashAttention-2, Dao 2023), for shapes at which ATen's fused
// kernel loses time: it wants keys and values of one width, and its products are many and small.
#pragma once

#include <ATen/core/Tensor.h>

namespace pharos::nn::kernels {

/// True when causal_attention() takes these: float32 on the CPU, as many queries as keys.
bool fits_causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

/// softmax(q kᵀ scale) v, where query i sees keys 0 … i. query, key: [batch, heads, tokens, width]; value: [batch,
/// heads, tokens, value width]. Returns [batch, heads, tokens, value width] as a view of [batch, tokens, heads, value
/// width], which is what the projection behind it reads. Differentiable; keeps its inputs, its output and a number for
/// each query and head, and never holds more than a block of scores a thread. The result does not depend on the number
/// of threads.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale);

}  // namespace pharos::nn::kernels
