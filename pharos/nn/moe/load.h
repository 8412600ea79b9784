// What the router of a layer did during a step: for balancing by bias, for the log and for metrics.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

namespace pharos::nn {

/// Sums over the microbatches of a step and the tokens of this rank. Tensors stay on the device; undefined: nothing
/// yet.
struct RouterLoad {
  at::Tensor tokens_per_expert;  ///< float64 [experts]: choices, those dropped later included
  at::Tensor dropped;            ///< float64 scalar: choices dropped by capacity
  std::int64_t num_tokens = 0;
  std::int64_t num_microbatches = 0;
  std::map<std::string, at::Tensor> losses;  ///< by type ("aux_loss", "z_loss", …), coefficients included: float64
                                             ///< scalars, this rank's share of each microbatch's value

  // Of global_aux_loss: counts over all ranks so far, [1, experts], and their mean over microbatches as it was when the
  // microbatch with this first sample was counted.
  at::Tensor global_counts;
  std::int64_t num_global_counts = 0;
  std::map<std::int64_t, at::Tensor> global_mean_counts;
};

/// Of one layer over all ranks, from the sums of all ranks' loads.
struct LoadSummary {
  double max_over_mean = 1;     ///< load of the busiest expert
  std::int64_t num_dead = 0;    ///< experts that no token chose
  double entropy = 0;           ///< of the shares of the experts, over ln(experts): 1 is perfect balance
  double dropped_fraction = 0;  ///< of all choices
};
LoadSummary summarize_load(const at::Tensor& tokens_per_expert, double num_dropped);

}  // namespace pharos::nn
