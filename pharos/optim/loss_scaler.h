// Scale of the loss that keeps fp16 gradients above the smallest number (Micikevicius et al. 2018; Megatron's grad
// scalers, whose state keys these are).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

namespace pharos::optim {

struct DynamicLossScale {
  double initial_scale = 4294967296.0;
  double min_scale = 1.0;
  std::int64_t growth_interval = 1000;  ///< overflow-free steps before the scale doubles
  std::int64_t hysteresis = 2;          ///< overflows before the scale halves
};

class LossScaler {
 public:
  /// A scale that never changes; 1 for fp32 and bf16.
  explicit LossScaler(double constant_scale = 1.0);
  explicit LossScaler(const DynamicLossScale& options);

  double scale() const { return scale_; }
  bool is_dynamic() const { return dynamic_.has_value(); }

  /// After each step: an overflow spends hysteresis, and halves the scale (not below min_scale) once there is none
  /// left; growth_interval good steps in a row double it and restore the hysteresis.
  void update(bool found_overflow);

  /// Object with the keys scale, growth_tracker, hysteresis_tracker; for a constant scale the first only.
  nlohmann::json save() const;
  /// A constant scale keeps its configured value. UserError when a key is missing or a number impossible.
  void restore(const nlohmann::json& state);

 private:
  double scale_;
  std::optional<DynamicLossScale> dynamic_;
  std::int64_t growth_tracker_ = 0;
  std::int64_t hysteresis_tracker_ = 0;
};

}  // namespace pharos::optim
