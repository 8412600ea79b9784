#include "pharos/train/experts/routing.h"

#include <gtest/gtest.h>

namespace pharos::train {
namespace {

TEST(Routing, TheWorstOfTheLayersIsTold) {
  const std::vector<RoutedLayer> layers{
      {.number = 2, .load = {1.5, 1, 0.95, 0.0}, .losses = {{"z_loss", 2}}},
      {.number = 3, .load = {1.25, 2, 0.9, 0.03}, .losses = {{"z_loss", 4}}},
  };
  const WorstLoad worst = worst_load(layers);
  EXPECT_EQ(worst.max_over_mean, 1.5);
  EXPECT_EQ(worst.max_over_mean_layer, 2);
  EXPECT_EQ(worst.num_dead, 3);
  EXPECT_EQ(worst.entropy, 0.9);
  EXPECT_EQ(worst.entropy_layer, 3);
  EXPECT_EQ(worst.dropped_fraction, 0.015);
  EXPECT_EQ(render_load(worst),
            " experts | load max/mean: 1.50 (layer 2) | dead: 3 | entropy: 0.900 (layer 3) | dropped: 1.50% |");
  EXPECT_EQ(render_layer(layers[1]),
            " experts of layer   3 | load max/mean: 1.25 | dead: 2 | entropy: 0.900 | dropped: 3.00% | z_loss: "
            "4.000000E+00 |");
}

}  // namespace
}  // namespace pharos::train
