// Linear layers divided over tensor-parallel ranks. A column-parallel layer computes some of the outputs from all
// inputs, a row-parallel one a summand of all outputs from some of the inputs: in that order they need one reduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "pharos/nn/linear.h"
#include "pharos/nn/parallel/tensor_parallel.h"
#include "pharos/tensor/parameter.h"

namespace pharos::nn {

/// y_r = x W_rᵀ + b_r on rank r. weight: [out / ranks, in]; bias: [out / ranks].
struct ColumnLinear {
  tensor::Parameter weight;
  std::optional<tensor::Parameter> bias;
  TensorParallel parallel;

  /// input: [batch, tokens, in], under sequence parallelism this rank's tokens -> [batch, all tokens, out / ranks].
  /// Backward reduces the input gradient while the weight gradient is computed; under sequence parallelism it gathers
  /// the input again instead of keeping it.
  at::Tensor forward(const at::Tensor& input) const;
};

/// The same with a weight that belongs to another layer or has no bias (output layer); `bias` may be null.
at::Tensor column_linear(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias,
                         const TensorParallel& parallel);

/// y = Σ_r x_r W_rᵀ + b. weight: [out, in / ranks]; bias: [out], the same on all ranks, added once after the sum.
struct RowLinear {
  tensor::Parameter weight;
  std::optional<tensor::Parameter> bias;
  TensorParallel parallel;

  /// input: [batch, all tokens, in / ranks] -> [batch, tokens, out], under sequence parallelism this rank's tokens.
  at::Tensor forward(const at::Tensor& input) const;
};

}  // namespace pharos::nn
