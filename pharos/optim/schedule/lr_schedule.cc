#include "pharos/optim/schedule/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/schema/enum_names.h"

namespace pharos::optim {
namespace {

using config::LrDecayStyle;
using config::WeightDecayIncrStyle;
using config::WsdDecayStyle;

double half_cosine(double fraction) { return 0.5 * (std::cos(std::numbers::pi * fraction) + 1.0); }

/// Height over min_lr, from 1 to 0, at `fraction` of the annealing tail.
double annealing_coefficient(WsdDecayStyle style, double fraction) {
  switch (style) {
    case WsdDecayStyle::kLinear:
      return 1.0 - fraction;
    case WsdDecayStyle::kCosine:
      return half_cosine(fraction);
    case WsdDecayStyle::kExponential:
      return 2.0 * std::pow(0.5, fraction) - 1.0;
    case WsdDecayStyle::kMinusSqrt:
      return 1.0 - std::sqrt(fraction);
  }
  throw base::InternalError("unknown annealing style");
}

void require(bool condition, const std::string& what, const std::string& why, const std::string& fix) {
  if (!condition) throw base::UserError({.what = what, .why = why, .fix = fix});
}

void validate(const LrScheduleOptions& options) {
  require(options.min_lr >= 0 && options.max_lr >= options.min_lr && options.init_lr >= 0 &&
              options.init_lr <= options.max_lr,
          fmt::format("optimizer.lr = {}, optimizer.min_lr = {} and scheduler.lr_warmup_init = {} are out of order.",
                      options.max_lr, options.min_lr, options.init_lr),
          "The peak lr must be at least min_lr and lr_warmup_init, and none may be negative.",
          "Set optimizer.min_lr and scheduler.lr_warmup_init below optimizer.lr.");
  require(options.lr_decay_steps > 0, fmt::format("The learning rate decays over {} samples.", options.lr_decay_steps),
          "The horizon is scheduler.lr_decay_iters (or train.train_iters) times the global batch size.",
          "Set scheduler.lr_decay_iters or train.train_iters to at least 1.");
  require(options.lr_warmup_steps >= 0 && options.lr_warmup_steps < static_cast<double>(options.lr_decay_steps),
          fmt::format("The warmup of {} samples does not end before the horizon of {} samples.",
                      options.lr_warmup_steps, options.lr_decay_steps),
          "", "Lower scheduler.lr_warmup_iters or raise scheduler.lr_decay_iters.");
  require(options.start_wd >= 0 && options.end_wd >= options.start_wd,
          fmt::format("scheduler.start_weight_decay = {} and end_weight_decay = {} are out of order.", options.start_wd,
                      options.end_wd),
          "Weight decay is not negative and only grows.", "Set end_weight_decay to at least start_weight_decay.");
  require(options.wd_incr_style != WeightDecayIncrStyle::kConstant || options.start_wd == options.end_wd,
          fmt::format(
              "scheduler.weight_decay_incr_style = constant, but start_weight_decay = {} and end_weight_decay = {}.",
              options.start_wd, options.end_wd),
          "Constant weight decay has one value.", "Give both the same value, or choose linear or cosine.");
  require(options.wd_incr_style == WeightDecayIncrStyle::kConstant || options.wd_incr_steps > 0,
          "Weight decay grows over no samples.", "", "Set train.train_iters to at least 1.");
}

void refuse_mixed_families(const config::RunConfig& config) {
  const auto& scheduler = config.scheduler;
  const bool iterations = scheduler.lr_decay_iters || scheduler.lr_warmup_iters != 0 || scheduler.lr_wsd_decay_iters;
  const bool samples = scheduler.lr_decay_samples || scheduler.lr_warmup_samples != 0 || scheduler.lr_wsd_decay_samples;
  const bool trains_samples = config.train.train_samples.has_value();
  require(!(trains_samples ? iterations : samples),
          fmt::format("The run is counted in train.{}, its scheduler in {}.",
                      trains_samples ? "train_samples" : "train_iters", trains_samples ? "iterations" : "samples"),
          "One run counts in one unit (bridge-config V11).",
          trains_samples ? "Use scheduler.lr_*_samples, or train.train_iters."
                         : "Use scheduler.lr_*_iters, or train.train_samples.");
  require(!scheduler.lr_warmup_fraction || (scheduler.lr_warmup_iters == 0 && scheduler.lr_warmup_samples == 0),
          "scheduler.lr_warmup_fraction is set beside lr_warmup_iters or lr_warmup_samples.",
          "They say the same thing twice.", "Keep one of them.");
}

/// Lengths of decay, annealing tail, weight-decay growth and explicit warmup, in samples.
void fill_lengths(const config::RunConfig& config, const BatchSchedule& batches, LrScheduleOptions& options) {
  const auto& scheduler = config.scheduler;
  if (config.train.train_samples) {
    options.lr_decay_steps = scheduler.lr_decay_samples.value_or(*config.train.train_samples);
    options.wsd_decay_steps = scheduler.lr_wsd_decay_samples.value_or(options.lr_decay_steps);
    options.wd_incr_steps = *config.train.train_samples;
    options.lr_warmup_steps = static_cast<double>(scheduler.lr_warmup_samples);
    return;
  }
  require(config.train.train_iters.has_value(), "Neither train.train_iters nor train.train_samples is set.",
          "The learning rate needs a horizon.", "Set train.train_iters.");
  const std::int64_t train_iters = *config.train.train_iters;
  const std::int64_t horizon = std::max(train_iters, scheduler.max_steps.value_or(0));
  const std::int64_t decay_iters = scheduler.lr_decay_iters.value_or(horizon);
  options.lr_decay_steps = batches.samples_after(decay_iters);
  // The tail lies at the end of the horizon, where the batch size may be another than at the start.
  const std::int64_t tail_iters = std::min(decay_iters, scheduler.lr_wsd_decay_iters.value_or(decay_iters));
  options.wsd_decay_steps = options.lr_decay_steps - batches.samples_after(decay_iters - tail_iters);
  options.wd_incr_steps = batches.samples_after(train_iters);
  options.lr_warmup_steps = static_cast<double>(batches.samples_after(scheduler.lr_warmup_iters));
}

/// Reads state[key] into `value`, or compares, as `policy` says.
template <typename T>
void restore_value(const nlohmann::json& state, const char* key, StoredSchedule policy, T& value) {
  if (policy == StoredSchedule::kIgnore) return;
  const T stored = state.at(key).get<T>();
  require(policy == StoredSchedule::kTake || stored == value,
          fmt::format("The checkpoint's schedule has {} = {}, the configuration gives {}.", key, state.at(key).dump(),
                      nlohmann::json(value).dump()),
          "A resumed run keeps its schedule unless told otherwise.",
          "Set scheduler.override_opt_param_scheduler=true to follow the configuration, or "
          "scheduler.use_checkpoint_opt_param_scheduler=true to follow the checkpoint.");
  value = stored;
}

template <typename T>
void restore_enum(const nlohmann::json& state, const char* key, StoredSchedule policy, T& value) {
  std::string name = config::enum_name(value);
  restore_value(state, key, policy, name);
  for (const auto& spelling : config::spellings(value)) {
    if (spelling.name != name) continue;
    value = static_cast<T>(spelling.value);
    return;
  }
  require(false, fmt::format("The checkpoint's schedule has {} = {}, which is unknown.", key, name), "",
          "Set scheduler.override_opt_param_scheduler=true to follow the configuration.");
}

}  // namespace

LrScheduleOptions lr_schedule_options(const config::RunConfig& config, const BatchSchedule& batches,
                                      std::vector<std::string>& warnings) {
  refuse_mixed_families(config);
  require(config.optimizer.lr.has_value(), "optimizer.lr is not set.", "Training needs a peak learning rate.",
          "Set optimizer.lr, for example optimizer.lr=3e-4.");
  LrScheduleOptions options;
  options.max_lr = *config.optimizer.lr;
  options.min_lr = config.optimizer.min_lr.value_or(0);
  options.init_lr = config.scheduler.lr_warmup_init;
  options.lr_decay_style = config.scheduler.lr_decay_style;
  options.lr_wsd_decay_style = config.scheduler.lr_wsd_decay_style;
  options.start_wd = config::start_weight_decay_or_default(config);
  options.end_wd = config::end_weight_decay_or_default(config);
  options.wd_incr_style = config.scheduler.weight_decay_incr_style;
  fill_lengths(config, batches, options);
  if (config.scheduler.lr_warmup_fraction) {
    options.lr_warmup_steps = *config.scheduler.lr_warmup_fraction * static_cast<double>(options.lr_decay_steps);
  }
  if (options.lr_decay_steps > 0 && options.lr_warmup_steps >= static_cast<double>(options.lr_decay_steps)) {
    const auto clipped = options.lr_decay_steps - 1;
    warnings.push_back(
        fmt::format("The warmup of {} samples does not end before the learning-rate horizon of {} samples; "
                    "it is cut to {} samples.",
                    options.lr_warmup_steps, options.lr_decay_steps, clipped));
    options.lr_warmup_steps = static_cast<double>(clipped);
  }
  return options;
}

StoredSchedule stored_schedule_policy(const config::SchedulerConfig& scheduler) {
  require(!scheduler.override_opt_param_scheduler || !scheduler.use_checkpoint_opt_param_scheduler,
          "scheduler.override_opt_param_scheduler and use_checkpoint_opt_param_scheduler are both true.",
          "One keeps the configured schedule, the other the stored one.", "Set one of them to false.");
  if (scheduler.override_opt_param_scheduler) return StoredSchedule::kIgnore;
  return scheduler.use_checkpoint_opt_param_scheduler ? StoredSchedule::kTake : StoredSchedule::kMustMatch;
}

LrSchedule::LrSchedule(LrScheduleOptions options) : options_(options) { validate(options_); }

double LrSchedule::learning_rate_at(std::int64_t num_samples) const {
  const LrScheduleOptions& o = options_;
  const auto count = static_cast<double>(num_samples);
  if (o.lr_warmup_steps > 0 && count <= o.lr_warmup_steps) {
    return o.init_lr + (o.max_lr - o.init_lr) * count / o.lr_warmup_steps;
  }
  if (o.lr_decay_style == LrDecayStyle::kConstant) return o.max_lr;
  if (num_samples > o.lr_decay_steps) return o.min_lr;
  if (o.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
    const double warmup = std::max(o.lr_warmup_steps, 1.0);
    return std::max(o.min_lr, o.max_lr * std::sqrt(warmup) / std::sqrt(std::max(count, 1.0)));
  }
  const double fraction = (count - o.lr_warmup_steps) / (static_cast<double>(o.lr_decay_steps) - o.lr_warmup_steps);
  double coefficient = 1.0;
  if (o.lr_decay_style == LrDecayStyle::kLinear) {
    coefficient = 1.0 - fraction;
  } else if (o.lr_decay_style == LrDecayStyle::kCosine) {
    coefficient = half_cosine(fraction);
  } else if (const auto tail = num_samples - (o.lr_decay_steps - o.wsd_decay_steps); tail > 0) {
    coefficient =
        annealing_coefficient(o.lr_wsd_decay_style, static_cast<double>(tail) / static_cast<double>(o.wsd_decay_steps));
  }
  return o.min_lr + coefficient * (o.max_lr - o.min_lr);
}

double LrSchedule::weight_decay_at(std::int64_t num_samples) const {
  const LrScheduleOptions& o = options_;
  if (num_samples > o.wd_incr_steps || o.wd_incr_style == WeightDecayIncrStyle::kConstant) return o.end_wd;
  const double fraction = static_cast<double>(num_samples) / static_cast<double>(o.wd_incr_steps);
  const bool linear = o.wd_incr_style == WeightDecayIncrStyle::kLinear;
  return o.start_wd + (linear ? fraction : half_cosine(1.0 - fraction)) * (o.end_wd - o.start_wd);
}

nlohmann::json LrSchedule::save() const {
  return {{"max_lr", options_.max_lr},
          {"min_lr", options_.min_lr},
          {"lr_warmup_steps", options_.lr_warmup_steps},
          {"num_steps", num_steps_},
          {"lr_decay_style", config::enum_name(options_.lr_decay_style)},
          {"lr_decay_steps", options_.lr_decay_steps},
          {"start_wd", options_.start_wd},
          {"end_wd", options_.end_wd},
          {"wd_incr_style", config::enum_name(options_.wd_incr_style)},
          {"wd_incr_steps", options_.wd_incr_steps}};
}

void LrSchedule::restore(const nlohmann::json& state, StoredSchedule policy) {
  LrScheduleOptions restored = options_;
  std::int64_t num_steps = 0;
  try {
    num_steps = state.at("num_steps").get<std::int64_t>();
    restore_value(state, "max_lr", policy, restored.max_lr);
    restore_value(state, "min_lr", policy, restored.min_lr);
    restore_value(state, "lr_warmup_steps", policy, restored.lr_warmup_steps);
    restore_value(state, "lr_decay_steps", policy, restored.lr_decay_steps);
    restore_enum(state, "lr_decay_style", policy, restored.lr_decay_style);
    restore_value(state, "start_wd", policy, restored.start_wd);
    restore_value(state, "end_wd", policy, restored.end_wd);
    restore_enum(state, "wd_incr_style", policy, restored.wd_incr_style);
    restore_value(state, "wd_incr_steps", policy, restored.wd_incr_steps);
  } catch (const nlohmann::json::exception& error) {
    throw base::UserError({.what = "The checkpoint's learning-rate schedule cannot be read.",
                           .why = error.what(),
                           .fix = "Resume from another checkpoint."});
  }
  require(num_steps >= 0, fmt::format("The checkpoint's schedule has num_steps = {}.", num_steps),
          "It counts samples trained on.", "Resume from another checkpoint.");
  validate(restored);
  options_ = restored;
  num_steps_ = num_steps;
}

}  // namespace pharos::optim
