// The experts that a rank holds: one feed-forward block each, over rows sorted by expert.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "pharos/config/enums.h"
#include "pharos/tensor/parameter.h"

namespace pharos::nn {

/// rows [n, in] times weight[e]ᵀ ([experts, out, in]) by runs of counts[e] rows, plus bias[e] ([experts, out]) -> [n,
/// out]. Gradients of weight and bias are added to main_grad (nothing for an expert without rows; its use is reported
/// all the same), at once or through the WeightGradientQueue.
at::Tensor grouped_linear(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                          const tensor::Parameter& weight, const tensor::Parameter* bias);

struct Experts {
  /// [local experts, 2 width / ETP, hidden] when gated (per expert gate, then up), else [local experts, width / ETP,
  /// hidden]: pieces [experts, width, hidden] side by side along axis 1, divided along axis 0 over the expert-parallel
  /// and along axis 1 over the expert-tensor-parallel ranks.
  tensor::Parameter fc1;
  std::optional<tensor::Parameter> fc1_bias;  ///< [local experts, 2 width or width]; only without ETP
  tensor::Parameter fc2;                      ///< [local experts, hidden, width / ETP]
  std::optional<tensor::Parameter> fc2_bias;  ///< [local experts, hidden]
  config::Activation activation = config::Activation::kSilu;
  bool gated = true;
  std::optional<double> clamp;
  double up_offset = 0;
  bool recompute_activation = false;  ///< recompute_modules has moe_act

  /// rows: [n, hidden] sorted by local expert, counts[e] of each; probabilities: [n]. Each row's result times its
  /// probability: [n, hidden], under expert-tensor parallelism this rank's summand.
  at::Tensor forward(const at::Tensor& rows, const std::vector<std::int64_t>& counts,
                     const at::Tensor& probabilities) const;
};

}  // namespace pharos::nn
