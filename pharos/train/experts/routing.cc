#include "pharos/train/experts/routing.h"

#include <fmt/format.h>

namespace pharos::train {

WorstLoad worst_load(const std::vector<RoutedLayer>& layers) {
  WorstLoad worst;
  for (const RoutedLayer& layer : layers) {
    if (worst.max_over_mean_layer == 0 || layer.load.max_over_mean > worst.max_over_mean) {
      worst.max_over_mean = layer.load.max_over_mean;
      worst.max_over_mean_layer = layer.number;
    }
    if (worst.entropy_layer == 0 || layer.load.entropy < worst.entropy) {
      worst.entropy = layer.load.entropy;
      worst.entropy_layer = layer.number;
    }
    worst.num_dead += layer.load.num_dead;
    worst.dropped_fraction += layer.load.dropped_fraction / static_cast<double>(layers.size());
  }
  return worst;
}

std::string render_load(const WorstLoad& load) {
  return fmt::format(
      " experts | load max/mean: {:.2f} (layer {}) | dead: {} | entropy: {:.3f} (layer {}) | dropped: {:.2f}% |",
      load.max_over_mean, load.max_over_mean_layer, load.num_dead, load.entropy, load.entropy_layer,
      100 * load.dropped_fraction);
}

std::string render_layer(const RoutedLayer& layer) {
  std::string text = fmt::format(
      " experts of layer {:3d} | load max/mean: {:.2f} | dead: {} | entropy: {:.3f} | dropped: {:.2f}% |", layer.number,
      layer.load.max_over_mean, layer.load.num_dead, layer.load.entropy, 100 * layer.load.dropped_fraction);
  for (const auto& [name, value] : layer.losses) text += fmt::format(" {}: {:.6E} |", name, value);
  return text;
}

}  // namespace pharos::train
