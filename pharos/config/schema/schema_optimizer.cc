// Sections optimizer and scheduler.
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

using C = OptimizerConfig;

void declare_update_rule(SectionBuilder<C>& optimizer) {
  optimizer.field("optimizer", &C::optimizer,
                  "update rule, adam or sgd; adam is AdamW while decoupled_weight_decay is on");
  optimizer.field("lr", &C::lr, "peak learning rate").min(0);
  optimizer.field("min_lr", &C::min_lr, "floor of the learning rate; unset: 0").min(0);
  optimizer
      .field("weight_decay", &C::weight_decay,
             "weight decay; acts unless scheduler.start_weight_decay and end_weight_decay are set")
      .min(0);
  optimizer.field("decoupled_weight_decay", &C::decoupled_weight_decay,
                  "decay weights directly (AdamW), not through the gradient");
  optimizer.field("adam_beta1", &C::adam_beta1, "decay of the first moment").min(0).below(1);
  optimizer.field("adam_beta2", &C::adam_beta2, "decay of the second moment").min(0).below(1);
  optimizer.field("adam_eps", &C::adam_eps, "added to the root of the second moment").above(0);
  optimizer.field("muon_momentum", &C::muon_momentum, "momentum of Muon").min(0).below(1);
  optimizer.field("muon_nesterov", &C::muon_nesterov, "Nesterov momentum in Muon");
  optimizer.field("muon_num_ns_steps", &C::muon_num_ns_steps, "Newton-Schulz iterations").min(1);
  optimizer.field("muon_scale_mode", &C::muon_scale_mode, "scaling of Muon's update")
      .one_of({"spectral", "unit_rms_norm", "shape_scaling"});
  optimizer.field("muon_split_qkv", &C::muon_split_qkv, "orthogonalise q, k and v separately");
  optimizer.field("muon_tp_mode", &C::muon_tp_mode, "how Muon treats tensor-parallel shards")
      .one_of({"duplicated", "blockwise", "distributed"});
  optimizer.field("muon_extra_scale_factor", &C::muon_extra_scale_factor, "extra factor on Muon's update").above(0);
  optimizer.field("muon_scalar_optimizer", &C::muon_scalar_optimizer, "update rule of what is no matrix")
      .one_of({"adam", "lion"});
  optimizer.field("clip_grad", &C::clip_grad, "largest global L2 norm of the gradient; 0 disables").min(0);
  optimizer.field("sgd_momentum", &C::sgd_momentum, "momentum of sgd").min(0).below(1);
  optimizer
      .field("grad_norm_skip_threshold", &C::grad_norm_skip_threshold, "a step whose gradient norm is above is skipped")
      .above(0);
}

void declare_optimizer_precision(SectionBuilder<C>& optimizer) {
  static constexpr const char* kPrecisionAware = "precision-aware optimizer";
  optimizer.field("fp16", &C::fp16, "model weights are fp16; set by mixed_precision");
  optimizer.field("bf16", &C::bf16, "model weights are bf16; set by mixed_precision");
  optimizer.field("params_dtype", &C::params_dtype, "type of the model weights; set by mixed_precision");
  optimizer.field("loss_scale", &C::loss_scale, "constant loss scale for fp16; unset: dynamic").above(0);
  optimizer.field("initial_loss_scale", &C::initial_loss_scale, "first dynamic loss scale").above(0);
  optimizer.field("min_loss_scale", &C::min_loss_scale, "smallest dynamic loss scale").above(0);
  optimizer.field("loss_scale_window", &C::loss_scale_window, "overflow-free steps before the loss scale doubles")
      .unit("steps")
      .min(1);
  optimizer.field("hysteresis", &C::hysteresis, "overflows before the loss scale halves").min(1);
  optimizer
      .field("use_distributed_optimizer", &C::use_distributed_optimizer,
             "shard optimizer state over data-parallel ranks")
      .one_rank();
  optimizer
      .field("use_precision_aware_optimizer", &C::use_precision_aware_optimizer,
             "allow optimizer state in less than fp32")
      .later(kPrecisionAware);
  optimizer.field("main_grads_dtype", &C::main_grads_dtype, "type of the main gradients").later(kPrecisionAware);
  optimizer.field("main_params_dtype", &C::main_params_dtype, "type of the main parameters").later(kPrecisionAware);
  optimizer.field("exp_avg_dtype", &C::exp_avg_dtype, "type of the first moment").later(kPrecisionAware);
  optimizer.field("exp_avg_sq_dtype", &C::exp_avg_sq_dtype, "type of the second moment").later(kPrecisionAware);
  optimizer.field("overlap_param_gather", &C::overlap_param_gather, "gather parameters while the forward pass runs")
      .one_rank();
  optimizer
      .field("freeze", &C::freeze,
             "weights that are not trained: patterns of their names, * for any text (decoder.layers.0.*)")
      .own();
  optimizer
      .field("lr_scales", &C::lr_scales,
             "PATTERN=FACTOR: the learning rate of weights of these names is multiplied; the last that fits decides")
      .own();
}

void declare_scheduler(std::vector<Field>& fields) {
  SectionBuilder scheduler(fields, "scheduler", &RunConfig::scheduler);
  using S = SchedulerConfig;
  scheduler.field("lr_decay_style", &S::lr_decay_style, "course of the learning rate after warm-up");
  scheduler.field("lr_decay_iters", &S::lr_decay_iters, "horizon of the decay; unset: train_iters")
      .unit("steps")
      .min(1);
  scheduler.field("lr_decay_samples", &S::lr_decay_samples, "horizon of the decay in sample-based training")
      .unit("samples")
      .min(1);
  scheduler.field("lr_warmup_iters", &S::lr_warmup_iters, "length of the warm-up").unit("steps").min(0);
  scheduler.field("lr_warmup_samples", &S::lr_warmup_samples, "length of the warm-up in sample-based training")
      .unit("samples")
      .min(0);
  scheduler
      .field("lr_warmup_fraction", &S::lr_warmup_fraction,
             "warm-up as a fraction of the decay horizon; excludes the two above")
      .min(0)
      .max(1);
  scheduler.field("lr_warmup_init", &S::lr_warmup_init, "learning rate at the start of warm-up").min(0);
  scheduler.field("lr_wsd_decay_iters", &S::lr_wsd_decay_iters, "length of the annealing tail of WSD")
      .unit("steps")
      .min(1);
  scheduler.field("lr_wsd_decay_samples", &S::lr_wsd_decay_samples, "annealing tail of WSD in sample-based training")
      .unit("samples")
      .min(1);
  scheduler.field("lr_wsd_decay_style", &S::lr_wsd_decay_style, "course of the annealing tail of WSD");
  scheduler
      .field("start_weight_decay", &S::start_weight_decay,
             "weight decay at the first step; unset: optimizer.weight_decay")
      .min(0);
  scheduler
      .field("end_weight_decay", &S::end_weight_decay, "weight decay at the last step; unset: optimizer.weight_decay")
      .min(0);
  scheduler.field("weight_decay_incr_style", &S::weight_decay_incr_style,
                  "course of the weight decay; constant needs equal ends");
  scheduler.field("override_opt_param_scheduler", &S::override_opt_param_scheduler,
                  "on resume keep this schedule, not the stored one");
  scheduler.field("use_checkpoint_opt_param_scheduler", &S::use_checkpoint_opt_param_scheduler,
                  "on resume take the stored schedule");
  scheduler.field("max_steps", &S::max_steps, "default horizon instead of train_iters, when at least as long")
      .unit("steps")
      .min(1);
}

}  // namespace

void declare_optimizer(std::vector<Field>& fields) {
  SectionBuilder optimizer(fields, "optimizer", &RunConfig::optimizer);
  declare_update_rule(optimizer);
  declare_optimizer_precision(optimizer);
  declare_scheduler(fields);
}

}  // namespace pharos::config
