#include "pharos/optim/optimizer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/optim/clip.h"
#include "pharos/optim/names/name_rules.h"
#include "pharos/optim/sgd.h"

namespace pharos::optim {
namespace {

void require_fp32(const char* field, config::DType dtype) {
  if (dtype == config::DType::kFloat32) return;
  throw base::UserError({.what = std::string("optimizer.") + field + " = " + config::enum_name(dtype) + " is not fp32.",
                         .why = "Gradients, main parameters and moments are kept in fp32.",
                         .fix = std::string("Set optimizer.") + field + "=fp32."});
}

LossScaler make_loss_scaler(const config::OptimizerConfig& optimizer) {
  if (optimizer.loss_scale) return LossScaler(*optimizer.loss_scale);
  if (!optimizer.fp16) return LossScaler(1.0);
  return LossScaler({.initial_scale = optimizer.initial_loss_scale,
                     .min_scale = optimizer.min_loss_scale,
                     .growth_interval = optimizer.loss_scale_window,
                     .hysteresis = optimizer.hysteresis});
}

}  // namespace

OptimizerOptions optimizer_options(const config::RunConfig& config) {
  const auto& optimizer = config.optimizer;
  OptimizerOptions options;
  switch (optimizer.optimizer) {
    case config::OptimizerKind::kAdam:
      options.kind = OptimizerOptions::Kind::kAdamW;
      break;
    case config::OptimizerKind::kSgd:
      options.kind = OptimizerOptions::Kind::kSgd;
      break;
    default:
      throw base::UserError(
          {.what = "optimizer.optimizer = " + config::enum_name(optimizer.optimizer) + " is not available.",
           .why = "The update rules are adam and sgd.",
           .fix = "Set optimizer.optimizer=adam."});
  }
  require_fp32("main_grads_dtype", optimizer.main_grads_dtype);
  require_fp32("main_params_dtype", optimizer.main_params_dtype);
  require_fp32("exp_avg_dtype", optimizer.exp_avg_dtype);
  require_fp32("exp_avg_sq_dtype", optimizer.exp_avg_sq_dtype);
  options.adam = {.beta1 = optimizer.adam_beta1,
                  .beta2 = optimizer.adam_beta2,
                  .epsilon = optimizer.adam_eps,
                  .decoupled_weight_decay = optimizer.decoupled_weight_decay};
  options.sgd_momentum = optimizer.sgd_momentum;
  options.clip_grad = optimizer.clip_grad;
  options.grad_norm_skip_threshold = optimizer.grad_norm_skip_threshold;
  options.count_zeros = config.logger.log_num_zeros_in_grad;
  options.loss_scaler = make_loss_scaler(optimizer);
  if (optimizer.lr_scales) options.lr_scales = config::parse_lr_scales(*optimizer.lr_scales);
  return options;
}

std::string first_piece(const tensor::Parameter& parameter) {
  return parameter.pieces.empty() ? parameter.name : parameter.pieces.front().name;
}

UpdateTarget whole_target(const GradientBuffer& gradients, const std::vector<config::LrScale>& lr_scales) {
  UpdateTarget target{{}, gradients.layout().num_elements, gradients.flat().device()};
  for (std::size_t index = 0; index < gradients.parameters().size(); ++index) {
    const tensor::Parameter& parameter = *gradients.parameters()[index];
    target.slots.push_back({.parameter = index,
                            .name = parameter.name,
                            .piece = first_piece(parameter),
                            .first_element = 0,
                            .decays = parameter.weight_decay,
                            .learning_rate_scale = learning_rate_scale(parameter, lr_scales),
                            .value = parameter.data.detach(),
                            .gradient = parameter.main_grad,
                            .offset = gradients.layout().offsets[index]});
  }
  return target;
}

Optimizer::Optimizer(const GradientBuffer& gradients, const OptimizerOptions& options)
    : Optimizer(whole_target(gradients, options.lr_scales), options) {
  gradients_ = &gradients;
}

Optimizer::Optimizer(UpdateTarget target, const OptimizerOptions& options)
    : target_(std::move(target)), options_(options) {
  const at::NoGradGuard no_grad;
  if (options_.kind == OptimizerOptions::Kind::kAdamW) {
    rule_ = std::make_unique<AdamW>(make_values(), target_, options_.adam);
  } else {
    rule_ = std::make_unique<Sgd>(make_values(), target_, options_.sgd_momentum);
  }
}

/// The fp32 tensors that are updated: the data itself, or a main parameter beside it.
std::vector<at::Tensor> Optimizer::make_values() {
  std::vector<at::Tensor> values;
  at::Tensor flat;
  for (std::size_t index = 0; index < target_.slots.size(); ++index) {
    const UpdateSlot& slot = target_.slots[index];
    const at::Tensor& data = slot.value;
    if (data.scalar_type() == at::kFloat) {
      values.push_back(data);
      continue;
    }
    if (!flat.defined()) flat = target_.zeroed_flat();
    main_parameters_.push_back({index, target_.view_of(flat, slot), data});
    values.push_back(main_parameters_.back().main);
  }
  copy_data_to_main();
  return values;
}

void Optimizer::copy_data_to_main() {
  const at::NoGradGuard no_grad;
  for (auto& parameter : main_parameters_) parameter.main.copy_(parameter.data);
}

void Optimizer::copy_main_to_data() {
  const at::NoGradGuard no_grad;
  for (auto& parameter : main_parameters_) parameter.data.copy_(parameter.main);
}

StepResult Optimizer::step(double learning_rate, double weight_decay) {
  const at::NoGradGuard no_grad;
  PHAROS_CHECK(gradients_ != nullptr, "the totals of the gradients are not given");
  GradientTotals totals{.sum_of_squares = sum_of_squares(gradients_->flat()), .num_zeros = {}, .factor = 1};
  if (options_.count_zeros) totals.num_zeros = gradients_->num_elements() - num_nonzero(gradients_->flat());
  return step(learning_rate, weight_decay, totals);
}

StepResult Optimizer::step(double learning_rate, double weight_decay, const GradientTotals& totals) {
  const at::NoGradGuard no_grad;
  const double scale = loss_scale();
  StepResult result;
  const double scaled_norm = std::sqrt(totals.sum_of_squares);
  result.grad_norm = scaled_norm / scale;
  const bool finite = std::isfinite(scaled_norm);
  options_.loss_scaler.update(!finite);
  result.num_zeros = totals.num_zeros;
  if (!finite || result.grad_norm > options_.grad_norm_skip_threshold) return result;

  rule_->update({.learning_rate = learning_rate,
                 .weight_decay = weight_decay,
                 .gradient_divisor = scale / clip_coefficient(result.grad_norm, options_.clip_grad) / totals.factor});
  copy_main_to_data();
  result.update_successful = true;
  return result;
}

void Optimizer::for_each_state(const StateVisitor& visit) {
  for (const auto& [slot, main, data] : main_parameters_) {
    visit(target_.slots[slot].parameter, "main_param", main, target_.slots[slot].first_element);
  }
  rule_->for_each_state(visit);
}

nlohmann::json Optimizer::save_scalars() const {
  nlohmann::json state = {{"step", rule_->num_updates()}, {"loss_scaler", options_.loss_scaler.save()}};
  if (!started_at_.empty()) state["started_at"] = started_at_;
  return state;
}

void Optimizer::restore_scalars(const nlohmann::json& state, const std::set<std::string>& newly_trained) {
  std::int64_t num_updates = -1;
  started_at_.clear();
  try {
    if (state.contains("started_at")) started_at_ = state["started_at"].get<std::map<std::string, std::int64_t>>();
    num_updates = state.at("step").get<std::int64_t>();
    options_.loss_scaler.restore(state.at("loss_scaler"));
  } catch (const nlohmann::json::exception& error) {
    throw base::UserError({.what = "The checkpoint's optimizer state cannot be read.",
                           .why = error.what(),
                           .fix = "Resume from another checkpoint, or set checkpoint.load_optim=false."});
  }
  if (num_updates < 0) {
    throw base::UserError({.what = "The checkpoint's optimizer has done " + std::to_string(num_updates) + " updates.",
                           .fix = "Resume from another checkpoint, or set checkpoint.load_optim=false."});
  }
  for (const std::string& piece : newly_trained) started_at_[piece] = num_updates;
  std::vector<std::int64_t> started_at;
  for (const UpdateSlot& slot : target_.slots) {
    const auto found = started_at_.find(slot.piece);
    started_at.push_back(found == started_at_.end() ? 0 : found->second);
  }
  rule_->set_num_updates(num_updates, started_at);
}

}  // namespace pharos::optim
