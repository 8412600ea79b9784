#include "pharos/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"

namespace pharos::optim {

LossScaler::LossScaler(double constant_scale) : scale_(constant_scale) {
  PHAROS_CHECK(std::isfinite(constant_scale) && constant_scale > 0, "loss scale " + std::to_string(constant_scale));
}

LossScaler::LossScaler(const DynamicLossScale& options)
    : scale_(options.initial_scale), dynamic_(options), hysteresis_tracker_(options.hysteresis) {
  if (options.min_scale > 0 && options.initial_scale >= options.min_scale && options.growth_interval >= 1 &&
      options.hysteresis >= 1) {
    return;
  }
  throw base::UserError(
      {.what = "The dynamic loss scale cannot work with optimizer.initial_loss_scale = " +
               std::to_string(options.initial_scale) + ", min_loss_scale = " + std::to_string(options.min_scale) +
               ", loss_scale_window = " + std::to_string(options.growth_interval) +
               ", hysteresis = " + std::to_string(options.hysteresis) + ".",
       .why = "Scales are positive, the first at least the smallest; window and hysteresis at least 1.",
       .fix = "Correct the value, or leave the defaults 2^32, 1, 1000, 2."});
}

void LossScaler::update(bool found_overflow) {
  if (!dynamic_) return;
  if (found_overflow) {
    growth_tracker_ = 0;
    --hysteresis_tracker_;
    if (hysteresis_tracker_ <= 0) scale_ = std::max(scale_ * 0.5, dynamic_->min_scale);
    return;
  }
  if (++growth_tracker_ < dynamic_->growth_interval) return;
  growth_tracker_ = 0;
  hysteresis_tracker_ = dynamic_->hysteresis;
  scale_ *= 2.0;
}

nlohmann::json LossScaler::save() const {
  nlohmann::json state = {{"scale", scale_}};
  if (!dynamic_) return state;
  state["growth_tracker"] = growth_tracker_;
  state["hysteresis_tracker"] = hysteresis_tracker_;
  return state;
}

void LossScaler::restore(const nlohmann::json& state) {
  if (!dynamic_) return;
  try {
    const double scale = state.at("scale").get<double>();
    const auto growth_tracker = state.at("growth_tracker").get<std::int64_t>();
    const auto hysteresis_tracker = state.at("hysteresis_tracker").get<std::int64_t>();
    if (!std::isfinite(scale) || scale <= 0 || growth_tracker < 0) {
      throw base::UserError({.what = "The checkpoint's loss scale is " + state.dump() + ".",
                             .why = "The scale must be positive and the growth tracker not negative.",
                             .fix = "Resume from another checkpoint."});
    }
    scale_ = scale;
    growth_tracker_ = growth_tracker;
    hysteresis_tracker_ = hysteresis_tracker;
  } catch (const nlohmann::json::exception& error) {
    throw base::UserError({.what = "The checkpoint's loss scale cannot be read.",
                           .why = error.what(),
                           .fix = "Resume from a checkpoint of an fp16 run with dynamic loss scale."});
  }
}

}  // namespace pharos::optim
