// Rules of batch sizes, optimizer and schedules (bridge-config.md 1.3, 1.8–1.10, 1.17 V4, V5, V8, V11, V12, V14).
#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/grammar/batch_schedule.h"
#include "pharos/config/grammar/name_patterns.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/config/validate/rule_checker.h"

namespace pharos::config {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

/// A batch must be whole microbatches on every data-parallel rank.
void check_divides(RuleChecker& check, const std::string& field, std::int64_t size, std::int64_t micro,
                   std::int64_t data_parallel) {
  const std::int64_t unit = micro * data_parallel;
  if (check.config().train.decrease_batch_size_if_needed) {
    check.require(size >= unit, {field, "train.micro_batch_size"},
                  field + " holds batch size " + number(size) + ", less than micro batch size (" + number(micro) +
                      ") times data parallel size (" + number(data_parallel) + ").");
    return;
  }
  check.require(size % unit == 0, {field, "train.micro_batch_size"},
                "global batch size (" + number(size) + ") is not divisible by micro batch size (" + number(micro) +
                    ") times data parallel size (" + number(data_parallel) + ").",
                "Use a multiple of " + number(unit) + ", for example " + number(std::max(unit, size / unit * unit)) +
                    (size % data_parallel == 0
                         ? ", or train.micro_batch_size=" + number(std::gcd(micro, size / data_parallel)) + "."
                         : ".") +
                    (size > unit ? " train.decrease_batch_size_if_needed=true rounds down." : ""));
}

void check_changing_batches(RuleChecker& check, std::int64_t data_parallel) {
  const TrainConfig& train = check.config().train;
  const std::int64_t micro = *train.micro_batch_size;
  check.require(!train.rampup_batch_size || !train.step_batch_size_schedule,
                {"train.rampup_batch_size", "train.step_batch_size_schedule"},
                "train.rampup_batch_size and train.step_batch_size_schedule are both set.", "Use one of the two.");
  if (train.rampup_batch_size) {
    const std::string field = "train.rampup_batch_size";
    const auto& ramp = *train.rampup_batch_size;
    const bool valid = ramp.size() == 3 && ramp[0] >= 1 && ramp[1] >= 1 && ramp[2] >= 0;
    check.require(valid, {field}, check.show(field) + " is not [start, increment, samples] with positive sizes.",
                  "For example [32, 32, 100000].");
    if (!valid) return;
    check.require(ramp[0] <= *train.global_batch_size, {field, "train.global_batch_size"},
                  check.show(field) + " starts above " + check.show("train.global_batch_size") + ".");
    check.require(
        (*train.global_batch_size - ramp[0]) % ramp[1] == 0, {field, "train.global_batch_size"},
        check.show(field) + " does not reach " + check.show("train.global_batch_size") + " in whole increments.");
    check_divides(check, field, ramp[0], micro, data_parallel);
    if (!train.decrease_batch_size_if_needed) check_divides(check, field, ramp[1], micro, data_parallel);
  }
  if (!train.step_batch_size_schedule) return;
  try {
    for (const BatchStep& step : parse_batch_schedule(*train.step_batch_size_schedule)) {
      check_divides(check, "train.step_batch_size_schedule", step.global_batch_size, micro, data_parallel);
    }
  } catch (const base::UserError& error) {
    check.fail({"train.step_batch_size_schedule"}, error.parts().what, error.parts().fix);
  }
}

void check_interleaving(RuleChecker& check, std::int64_t data_parallel) {
  const ModelConfig& model = check.config().model;
  if (model.pipeline_model_parallel_size <= 1 || model.virtual_pipeline_model_parallel_size.value_or(1) <= 1 ||
      model.pipeline_schedule.value_or("interleaved") != "interleaved")
    return;
  const std::int64_t pipeline = model.pipeline_model_parallel_size,
                     group = model.microbatch_group_size_per_vp_stage.value_or(pipeline);
  const std::int64_t microbatches =
      *check.config().train.global_batch_size / (*check.config().train.micro_batch_size * data_parallel);
  const std::vector<std::string> fields = {"model.microbatch_group_size_per_vp_stage",
                                           "model.pipeline_model_parallel_size", "train.global_batch_size"};
  check.require(pipeline <= group && group <= microbatches, fields,
                "The interleaved schedule needs pipeline size (" + number(pipeline) + ") <= microbatch group size (" +
                    number(group) + ") <= number of microbatches (" + number(microbatches) + ").",
                "Use a global batch of at least " +
                    number(group * *check.config().train.micro_batch_size * data_parallel) + " samples.");
  const std::int64_t rest = microbatches % group;
  check.require(rest == 0 || rest >= pipeline, fields,
                "The interleaved schedule leaves a last group of " + number(rest) +
                    " microbatches, fewer than the pipeline size (" + number(pipeline) + ").",
                "Use a number of microbatches that is a multiple of " + number(group) + ", or leaves at least " +
                    number(pipeline) + ".");
}

void check_evaluation(RuleChecker& check, std::int64_t data_parallel) {
  const std::int64_t global = eval_global_batch_size_or_default(check.config()),
                     micro = eval_micro_batch_size_or_default(check.config());
  const bool own = check.config().validation.eval_global_batch_size || check.config().validation.eval_micro_batch_size;
  check.require(!own || global % (micro * data_parallel) == 0,
                {"validation.eval_global_batch_size", "validation.eval_micro_batch_size"},
                "evaluation global batch size (" + number(global) +
                    ") is not divisible by evaluation micro batch size (" + number(micro) +
                    ") times data parallel size (" + number(data_parallel) + ").",
                "Use a multiple of " + number(micro * data_parallel) + ".");
}

}  // namespace

void check_batches(RuleChecker& check) {
  const TrainConfig& train = check.config().train;
  const ModelConfig& model = check.config().model;
  const int horizons = (train.train_iters ? 1 : 0) + (train.train_samples ? 1 : 0);
  check.require(horizons == 1 || (horizons == 0 && check.config().validation.skip_train),
                {"train.train_iters", "train.train_samples"},
                horizons == 0 ? "Neither train.train_iters nor train.train_samples is set."
                              : "train.train_iters and train.train_samples are both set.",
                "Set exactly one of the two.");
  const bool skips = std::any_of(train.iterations_to_skip.begin(), train.iterations_to_skip.end(),
                                 [](std::int64_t i) { return i < 1; });
  check.require(!skips, {"train.iterations_to_skip"},
                check.show("train.iterations_to_skip") + " has numbers below 1; iterations count from 1.");
  check.require(!check.config().dataset.seq_length || *check.config().dataset.seq_length == model.seq_length,
                {"model.seq_length", "dataset.seq_length"},
                check.show("model.seq_length") + " differs from " + check.show("dataset.seq_length") + ".",
                "Set both to the same number, or only one of them.");
  if (check.world_size() % model_parallel_size(model) != 0) return;
  const std::int64_t data_parallel = data_parallel_size(model, check.world_size());
  check_divides(check, "train.global_batch_size", *train.global_batch_size, *train.micro_batch_size, data_parallel);
  check_changing_batches(check, data_parallel);
  check_interleaving(check, data_parallel);
  check_evaluation(check, data_parallel);
}

void check_optimizer(RuleChecker& check) {
  const OptimizerConfig& optimizer = check.config().optimizer;
  check.require(optimizer.lr.has_value(), {"optimizer.lr"}, "optimizer.lr is not set.",
                "Set the peak learning rate, for example optimizer.lr=3e-4.");
  check.require(!optimizer.lr || optimizer.min_lr.value_or(0) <= *optimizer.lr, {"optimizer.min_lr", "optimizer.lr"},
                check.show("optimizer.min_lr") + " is above " + check.show("optimizer.lr") + ".");
  check.require(!(optimizer.bf16 && optimizer.fp16), {"optimizer.bf16", "optimizer.fp16"},
                "optimizer.bf16 and optimizer.fp16 are both true.");
  check.require(check.purpose() == Purpose::kPlan || optimizer.optimizer == OptimizerKind::kAdam ||
                    optimizer.optimizer == OptimizerKind::kSgd,
                {"optimizer.optimizer"},
                check.show("optimizer.optimizer") + " is an update rule this release cannot train with.",
                "Set optimizer.optimizer=adam or sgd.");
  check.require(!optimizer.use_precision_aware_optimizer || optimizer.bf16 == check.config().model.bf16,
                {"optimizer.bf16", "model.bf16"}, "The precision-aware optimizer needs optimizer.bf16 = model.bf16.");
  check.require(!optimizer.use_precision_aware_optimizer || optimizer.optimizer == OptimizerKind::kAdam,
                {"optimizer.use_precision_aware_optimizer", "optimizer.optimizer"},
                "The precision-aware optimizer works with adam only.");
  const std::pair<const char*, DType> types[] = {{"optimizer.main_grads_dtype", optimizer.main_grads_dtype},
                                                 {"optimizer.main_params_dtype", optimizer.main_params_dtype},
                                                 {"optimizer.exp_avg_dtype", optimizer.exp_avg_dtype},
                                                 {"optimizer.exp_avg_sq_dtype", optimizer.exp_avg_sq_dtype}};
  for (const auto& [field, type] : types) {
    check.require(type == DType::kFloat32 || optimizer.use_precision_aware_optimizer,
                  {field, "optimizer.use_precision_aware_optimizer"},
                  check.show(field) + " must be fp32 without optimizer.use_precision_aware_optimizer.");
  }
  try {
    parse_lr_scales(optimizer.lr_scales.value_or(std::vector<std::string>{}));
  } catch (const base::UserError& error) {
    check.fail({"optimizer.lr_scales"}, error.parts().what + " " + error.parts().why, error.parts().fix);
  }
  const auto& precision = check.config().mixed_precision;
  check.require(!(precision.bf16 && precision.fp16), {"mixed_precision.bf16", "mixed_precision.fp16"},
                "mixed_precision.bf16 and mixed_precision.fp16 are both true.");
  check.require(!(precision.fp8 && precision.fp4), {"mixed_precision.fp8", "mixed_precision.fp4"},
                "mixed_precision.fp8 and fp4 are both set.");
}

void check_scheduler(RuleChecker& check) {
  const SchedulerConfig& scheduler = check.config().scheduler;
  const OptimizerConfig& optimizer = check.config().optimizer;
  const bool iterations = scheduler.lr_decay_iters || scheduler.lr_warmup_iters != 0 || scheduler.lr_wsd_decay_iters;
  const bool samples = scheduler.lr_decay_samples || scheduler.lr_warmup_samples != 0 || scheduler.lr_wsd_decay_samples;
  const std::vector<std::string> families = {"scheduler.lr_decay_iters", "scheduler.lr_decay_samples",
                                             "scheduler.lr_warmup_iters", "scheduler.lr_warmup_samples"};
  check.require(!(iterations && samples), families, "The scheduler mixes fields in iterations and in samples.",
                "Use one family.");
  check.require(!check.config().train.train_iters || !samples,
                {"train.train_iters", "scheduler.lr_decay_samples", "scheduler.lr_warmup_samples"},
                "Training is counted in iterations, but the scheduler in samples.",
                "Use scheduler.lr_decay_iters and lr_warmup_iters.");
  check.require(!check.config().train.train_samples || !iterations,
                {"train.train_samples", "scheduler.lr_decay_iters", "scheduler.lr_warmup_iters"},
                "Training is counted in samples, but the scheduler in iterations.",
                "Use scheduler.lr_decay_samples and lr_warmup_samples.");
  check.require(!scheduler.lr_warmup_fraction || (scheduler.lr_warmup_iters == 0 && scheduler.lr_warmup_samples == 0),
                {"scheduler.lr_warmup_fraction", "scheduler.lr_warmup_iters", "scheduler.lr_warmup_samples"},
                "scheduler.lr_warmup_fraction excludes an explicit warm-up.",
                "Set scheduler.lr_warmup_fraction=null or the warm-up to 0.");
  check.require(!optimizer.lr || scheduler.lr_warmup_init <= *optimizer.lr,
                {"scheduler.lr_warmup_init", "optimizer.lr"},
                check.show("scheduler.lr_warmup_init") + " is above " + check.show("optimizer.lr") + ".");
  const double start = start_weight_decay_or_default(check.config()), end = end_weight_decay_or_default(check.config());
  const std::vector<std::string> decay = {"scheduler.start_weight_decay", "scheduler.end_weight_decay",
                                          "scheduler.weight_decay_incr_style", "optimizer.weight_decay"};
  check.require(
      scheduler.weight_decay_incr_style != WeightDecayIncrStyle::kConstant || start == end, decay,
      "scheduler.weight_decay_incr_style = constant needs equal scheduler.start_weight_decay and end_weight_decay.",
      "Give both the same value, or use linear or cosine.");
  check.require(end >= start, decay, "scheduler.end_weight_decay is below scheduler.start_weight_decay.");
  check.require(!(scheduler.override_opt_param_scheduler && scheduler.use_checkpoint_opt_param_scheduler),
                {"scheduler.override_opt_param_scheduler", "scheduler.use_checkpoint_opt_param_scheduler"},
                "scheduler.override_opt_param_scheduler and use_checkpoint_opt_param_scheduler are both true.");
}

}  // namespace pharos::config
