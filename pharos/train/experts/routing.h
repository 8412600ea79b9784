// What the routers of a model did during a step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pharos/nn/moe/load.h"

namespace pharos::train {

/// By Megatron's names, "load_balancing_loss", …: over microbatches and data-parallel ranks averaged, without the
/// coefficient.
using RoutingLosses = std::vector<std::pair<std::string, double>>;

/// A layer with experts, over all ranks.
struct RoutedLayer {
  std::int64_t number = 1;  ///< 1-based; those of multi-token prediction follow the last layer
  nn::LoadSummary load;
  RoutingLosses losses;
};

/// Empty for a model without experts.
struct Routing {
  std::vector<RoutedLayer> layers;
  RoutingLosses losses;  ///< means over the layers
};

/// The worst of the layers, and the mean share of dropped choices.
struct WorstLoad {
  double max_over_mean = 1;
  std::int64_t max_over_mean_layer = 0;
  std::int64_t num_dead = 0;  ///< over all layers
  double entropy = 1;
  std::int64_t entropy_layer = 0;
  double dropped_fraction = 0;
};
WorstLoad worst_load(const std::vector<RoutedLayer>& layers);

/// " experts | load max/mean: 1.25 (layer 3) | dead: 0 | entropy: 0.981 (layer 2) | dropped: 0.00% |".
std::string render_load(const WorstLoad& load);
/// " experts of layer   3 | load max/mean: 1.25 | dead: 0 | entropy: 0.981 | dropped: 0.00% | z_loss: 1.000000E+00 |".
std::string render_layer(const RoutedLayer& layer);

}  // namespace pharos::train
