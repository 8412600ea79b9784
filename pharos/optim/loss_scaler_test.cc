#include "pharos/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

// '.' is a good step, 'x' an overflow; the scale is the one after the last step.
TEST(LossScaler, FollowsItsTable) {
  struct Case {
    DynamicLossScale options;
    const char* steps;
    double scale;
  };
  const Case cases[] = {
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "", 1024},
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "..", 1024},
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "...", 2048},
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "......", 4096},
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "x", 1024},      // hysteresis 2 → 1
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "xx", 512},      // → 0: halves
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "xxx", 256},     // stays spent
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "x..x", 512},    // good steps do not refill it
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2}, "x...x", 2048},  // a full window does
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 2},
       "..x..",
       1024},  // an overflow restarts the window
      {{.initial_scale = 1024, .growth_interval = 3, .hysteresis = 1}, "x", 512},
      {{.initial_scale = 4, .min_scale = 2, .growth_interval = 3, .hysteresis = 1}, "xxx", 2},
  };
  for (const Case& c : cases) {
    LossScaler scaler(c.options);
    for (const char step : std::string(c.steps)) scaler.update(step == 'x');
    EXPECT_EQ(scaler.scale(), c.scale) << c.steps;
  }
}

TEST(LossScaler, ConstantNeverMoves) {
  LossScaler scaler(128);
  for (int i = 0; i < 3000; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_FALSE(scaler.is_dynamic());
  scaler.restore({{"scale", 64}});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, StateContinuesWhereItWas) {
  const DynamicLossScale options{.initial_scale = 1024, .growth_interval = 4, .hysteresis = 2};
  LossScaler first(options);
  for (const bool overflow : {true, false, false}) first.update(overflow);
  LossScaler second(options);
  second.restore(nlohmann::json::parse(first.save().dump()));
  for (const bool overflow : {false, false, true, true, true}) {
    first.update(overflow);
    second.update(overflow);
    EXPECT_EQ(first.save(), second.save());
  }
}

TEST(LossScaler, RefusesImpossibleNumbers) {
  EXPECT_THROW(LossScaler(DynamicLossScale{.initial_scale = 1, .min_scale = 2}), base::UserError);
  EXPECT_THROW(LossScaler(DynamicLossScale{.min_scale = 0}), base::UserError);
  EXPECT_THROW(LossScaler(DynamicLossScale{.growth_interval = 0}), base::UserError);
  EXPECT_THROW(LossScaler(DynamicLossScale{.hysteresis = 0}), base::UserError);
  EXPECT_THROW(LossScaler(0.0), base::InternalError);
  LossScaler scaler{DynamicLossScale{}};
  EXPECT_THROW(scaler.restore({{"scale", 8}}), base::UserError);
  EXPECT_THROW(scaler.restore({{"scale", -8}, {"growth_tracker", 0}, {"hysteresis_tracker", 1}}), base::UserError);
  EXPECT_EQ(scaler.scale(), 4294967296.0);
}

}  // namespace
}  // namespace pharos::optim
