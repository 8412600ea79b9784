// The feed-forward block: fc2(activation(fc1(x))), or with a gate fc2(activation(gate(x)) * up(x)).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "pharos/config/enums.h"
#include "pharos/nn/parallel/linear.h"

namespace pharos::nn {

/// The activation named in the configuration, elementwise.
at::Tensor activate(const at::Tensor& input, config::Activation activation);

/// silu(gate) * up of fused rows [..., gate | up], times `weights` where these are defined: a number for each row,
/// [...]. input: [..., 2 width] -> [..., width] of its type. Keeps only its inputs.
at::Tensor swiglu(const at::Tensor& input, const at::Tensor& weights = {});

/// What lies between the two linear layers of a feed-forward block.
struct Activated {
  config::Activation activation = config::Activation::kGelu;
  bool gated = false;           ///< activation(gate) * (up + up_offset) of [..., gate | up]
  std::optional<double> clamp;  ///< gated: gate ≤ c, up in [-c, c]
  double up_offset = 0;

  /// inner: [..., width or 2 width] -> [..., width]; each row times its number in `weights` [...] where defined.
  at::Tensor forward(const at::Tensor& inner, const at::Tensor& weights = {}) const;
};

struct Mlp {
  ColumnLinear fc1;  ///< rows: gate then up when gated
  RowLinear fc2;
  config::Activation activation = config::Activation::kGelu;
  bool gated = false;
  std::optional<double> clamp;  ///< gated: gate ≤ c, up in [-c, c]
  double up_offset = 0;         ///< gated: added to up

  /// hidden: [..., hidden] -> the same shape ([batch, tokens, hidden] when divided over ranks).
  at::Tensor forward(const at::Tensor& hidden) const;
};

}  // namespace pharos::nn
