// A mixture-of-experts block in the place of an MLP (bridge-config.md 8.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "pharos/nn/linear.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/moe/dispatcher.h"
#include "pharos/nn/moe/experts.h"
#include "pharos/nn/moe/load.h"
#include "pharos/nn/moe/router.h"

namespace pharos::nn {

struct Moe {
  Router router;
  Experts experts;
  std::optional<Mlp> shared_experts;
  std::optional<Linear> shared_expert_gate;  ///< [1, hidden]: its sigmoid multiplies the shared experts' output
  bool pads_to_capacity = false;             ///< every expert gets exactly the capacity in rows from every rank
  bool recompute_shared_experts = false;
  bool overlaps_shared_experts = false;  ///< computed while tokens are under way
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<RouterLoad> load;  ///< of the step at hand; whoever reads it resets it (*load = {})

  /// hidden: [batch, tokens, hidden] of this rank -> the same shape.
  at::Tensor forward(const at::Tensor& hidden, const ForwardContext& context) const;
};

}  // namespace pharos::nn
