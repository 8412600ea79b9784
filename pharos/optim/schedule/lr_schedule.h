// Learning rate and weight decay as functions of the samples trained on (bridge-config.md 1.9; Megatron's
// OptimizerParamScheduler, whose numbers and state keys these are).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/optim/schedule/batch_schedule.h"

namespace pharos::optim {

/// All lengths in samples. Field names are Megatron's.
struct LrScheduleOptions {
  double init_lr = 0;  ///< learning rate at the first sample of the warmup
  double max_lr = 0;
  double min_lr = 0;
  double lr_warmup_steps = 0;  ///< a fraction of the horizon need not be whole
  std::int64_t lr_decay_steps = 0;
  config::LrDecayStyle lr_decay_style = config::LrDecayStyle::kLinear;
  std::int64_t wsd_decay_steps = 0;  ///< annealing tail of WSD
  config::WsdDecayStyle lr_wsd_decay_style = config::WsdDecayStyle::kExponential;
  double start_wd = 0;
  double end_wd = 0;
  std::int64_t wd_incr_steps = 0;
  config::WeightDecayIncrStyle wd_incr_style = config::WeightDecayIncrStyle::kConstant;
};

/// Options from the sections scheduler, optimizer and train, iterations turned into the samples that `batches` gives
/// them (with a batch size that changes, those that are really trained on). Appends a warning where the warmup is cut
/// to fit the horizon. UserError: no learning rate, a horizon of no samples, iteration and sample fields mixed.
LrScheduleOptions lr_schedule_options(const config::RunConfig& config, const BatchSchedule& batches,
                                      std::vector<std::string>& warnings);

/// What to do with stored values that differ from the configured ones.
enum class StoredSchedule : std::uint8_t {
  kMustMatch,  ///< UserError
  kIgnore,     ///< scheduler.override_opt_param_scheduler: keep the configured ones
  kTake,       ///< scheduler.use_checkpoint_opt_param_scheduler
};

/// The choice the configuration makes. UserError when both flags are on.
StoredSchedule stored_schedule_policy(const config::SchedulerConfig& scheduler);

/// A schedule and its place in it.
class LrSchedule {
 public:
  /// UserError when rates are negative or out of order, when the horizon is empty or shorter than the warmup, or when
  /// constant weight decay has unequal ends.
  explicit LrSchedule(LrScheduleOptions options);

  /// Values for the step that starts after num_steps() samples.
  double learning_rate() const { return learning_rate_at(num_steps_); }
  double weight_decay() const { return weight_decay_at(num_steps_); }
  double learning_rate_at(std::int64_t num_samples) const;
  double weight_decay_at(std::int64_t num_samples) const;

  /// After each successful step: the samples it trained on.
  void advance(std::int64_t num_samples) { num_steps_ += num_samples; }
  std::int64_t num_steps() const { return num_steps_; }
  const LrScheduleOptions& options() const { return options_; }

  /// Object with Megatron's keys: max_lr, min_lr, lr_warmup_steps, num_steps, lr_decay_style, lr_decay_steps, start_wd,
  /// end_wd, wd_incr_style, wd_incr_steps.
  nlohmann::json save() const;
  /// num_steps is always taken. UserError for a missing key, and for a differing one under kMustMatch.
  void restore(const nlohmann::json& state, StoredSchedule policy);

 private:
  LrScheduleOptions options_;
  std::int64_t num_steps_ = 0;
};

}  // namespace pharos::optim
