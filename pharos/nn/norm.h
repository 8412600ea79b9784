// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over the last axis.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "pharos/tensor/parameter.h"

namespace pharos::nn {

struct Norm {
  tensor::Parameter weight;               ///< [width]
  std::optional<tensor::Parameter> bias;  ///< [width]; LayerNorm only
  double epsilon = 1e-5;
  bool is_rms = true;
  bool zero_centered = false;  ///< the stored weight is the factor minus one

  /// input: [..., width] -> the same shape and type. Statistics are taken in float32. Gradients of weight and bias are
  /// added to main_grad where that is defined.
  at::Tensor forward(const at::Tensor& input) const;
};

}  // namespace pharos::nn
