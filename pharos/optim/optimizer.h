// One optimizer step: loss-scale removal, non-finite check, global norm, clipping, update, copy to the model's weights.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/config/grammar/name_patterns.h"
#include "pharos/config/run_config.h"
#include "pharos/optim/adamw.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/optim/loss_scaler.h"
#include "pharos/optim/update_rule.h"

namespace pharos::optim {

struct OptimizerOptions {
  enum class Kind : std::uint8_t { kAdamW, kSgd };
  Kind kind = Kind::kAdamW;
  AdamWOptions adam;
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  ///< largest global L2 norm; 0 does not clip
  double grad_norm_skip_threshold = std::numeric_limits<double>::infinity();  ///< a step with a larger norm is skipped
  bool count_zeros = false;                                                   ///< one more pass over the gradients
  LossScaler loss_scaler = LossScaler(1.0);
  std::vector<config::LrScale> lr_scales = {};  ///< factors on the learning rate, by name
};

/// From the sections optimizer and logger. fp16 without optimizer.loss_scale scales dynamically. UserError for an
/// update rule other than adam and sgd, and for optimizer state that is not fp32.
OptimizerOptions optimizer_options(const config::RunConfig& config);

struct StepResult {
  bool update_successful = false;  ///< false: non-finite gradient or norm above the threshold; nothing has changed
  double grad_norm = 0;            ///< global L2, without loss scale, before clipping
  std::optional<std::int64_t> num_zeros;  ///< zero gradient elements, with count_zeros
};

/// The gradients of the whole model, over all ranks: what decides about a step and its clipping.
struct GradientTotals {
  double sum_of_squares = 0;
  std::optional<std::int64_t> num_zeros;
  double factor = 1;  ///< the gradients are this times those in the buffers; contained in sum_of_squares
};

/// UpdateSlot::piece.
std::string first_piece(const tensor::Parameter& parameter);

/// One slot per parameter of `gradients`, of its shape; data are the values.
UpdateTarget whole_target(const GradientBuffer& gradients, const std::vector<config::LrScale>& lr_scales = {});

class Optimizer {
 public:
  /// Optimizes gradients.parameters(), whose data stays at its place from now on. fp32 data is updated in place; for
  /// bf16 and fp16 data the optimizer keeps fp32 main parameters, taken from the data now. `gradients` must outlive it.
  Optimizer(const GradientBuffer& gradients, const OptimizerOptions& options);
  /// Optimizes what `target` names, whose tensors stay at their places, otherwise alike. The gradients' totals are
  /// given to each step.
  Optimizer(UpdateTarget target, const OptimizerOptions& options);

  /// Updates from the main gradients, which are the loss's times loss_scale(). Afterwards they may be rescaled: zero
  /// the buffer before the next backward pass. A skipped step leaves parameters and moments bitwise as they were.
  StepResult step(double learning_rate, double weight_decay);
  StepResult step(double learning_rate, double weight_decay, const GradientTotals& totals);

  /// What to multiply the loss with before the next backward pass.
  double loss_scale() const { return options_.loss_scaler.scale(); }

  const OptimizerOptions& options() const { return options_; }
  const UpdateTarget& target() const { return target_; }

  /// Every state tensor, fp32: "main_param" for bf16 and fp16 data, and the update rule's (AdamW: "exp_avg",
  /// "exp_avg_sq"). After writing to main_param call copy_main_to_data(). Cut by tensor::piece_view for checkpoints.
  void for_each_state(const StateVisitor& visit);
  /// Numbers beside the tensors: "step" (updates done), "loss_scaler", and "started_at", {piece: step} of the weights
  /// of the whole model that were trained from a later step on than the first.
  nlohmann::json save_scalars() const;
  /// `newly_trained`: pieces of the whole model that have no state yet; they start now, and their moments are corrected
  /// for the updates they have had. UserError when a key is missing.
  void restore_scalars(const nlohmann::json& state, const std::set<std::string>& newly_trained = {});

  /// After the model's weights were loaded from elsewhere: takes them over as main parameters.
  void copy_data_to_main();
  /// Rounds the main parameters into the model's weights. Nothing to do for fp32.
  void copy_main_to_data();

 private:
  struct MainParameter {
    std::size_t slot;
    at::Tensor main;  ///< fp32 view
    at::Tensor data;  ///< bf16 or fp16
  };
  std::vector<at::Tensor> make_values();

  const GradientBuffer* gradients_ = nullptr;
  UpdateTarget target_;
  OptimizerOptions options_;
  std::vector<MainParameter> main_parameters_;
  std::unique_ptr<UpdateRule> rule_;
  std::map<std::string, std::int64_t> started_at_;  ///< [piece] 0 where it has none; the same on every rank
};

}  // namespace pharos::optim
