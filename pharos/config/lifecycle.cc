#include "pharos/config/lifecycle.h"

#include <algorithm>
#include <map>

#include "pharos/base/text.h"
#include "pharos/config/derived.h"
#include "pharos/config/precision.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

Value read(const ResolvedConfig& resolved, const std::string& field) {
  return schema().find(field)->read(resolved.config);
}

/// Sets `field` unless it already has this value; false when it had.
bool derive_field(ResolvedConfig& resolved, const std::string& field, const Value& value, const std::string& reason) {
  if (read(resolved, field) == value) return false;
  set_derived(resolved, field, value, reason);
  return true;
}

void expand_precision_recipe(ResolvedConfig& resolved, std::vector<Problem>& problems) {
  auto& precision = resolved.config.mixed_precision;
  if (!precision.name) return;
  const PrecisionRecipe* recipe = find_precision_recipe(*precision.name);
  if (recipe == nullptr) {
    problems.push_back({"mixed_precision.name", "mixed_precision = " + *precision.name + " is no precision recipe.",
                        resolved.origin_of("mixed_precision.name").text,
                        "Use one of " + base::join(precision_recipe_names(), ", ") + "."});
    return;
  }
  for (const auto& [name, text] : recipe->fields) {
    const std::string field = "mixed_precision." + name;
    if (!resolved.is_explicit(field))
      derive_field(resolved, field, classify_word(text), "mixed_precision " + recipe->name);
  }
}

/// Every field of mixed_precision overwrites the field of the same name elsewhere; what a user had set is told.
void copy_precision(ResolvedConfig& resolved) {
  static constexpr const char* kFields[] = {"fp16",
                                            "bf16",
                                            "params_dtype",
                                            "pipeline_dtype",
                                            "grad_reduce_in_fp32",
                                            "loss_scale",
                                            "initial_loss_scale",
                                            "min_loss_scale",
                                            "loss_scale_window",
                                            "hysteresis"};
  const auto& precision = resolved.config.mixed_precision;
  const std::string source = precision.name ? "mixed_precision " + *precision.name : "mixed_precision";
  for (const char* name : kFields) {
    const Value value = read(resolved, std::string("mixed_precision.") + name);
    if (value.is_null()) continue;
    for (const char* section : {"model.", "optimizer.", "ddp."}) {
      const std::string target = std::string(section) + name;
      if (schema().find(target) == nullptr) continue;
      const bool was_explicit = resolved.is_explicit(target);
      const std::string before = resolved.describe(target);
      if (derive_field(resolved, target, value, source) && was_explicit) {
        resolved.warnings.push_back(before + " is overwritten by " + source + " with " + to_message_text(value) + ".");
      }
    }
  }
}

/// A switch that two sections have: on in one is on in both (V10).
void match_switch(ResolvedConfig& resolved, const std::string& name) {
  const std::string left = "ddp." + name, right = "optimizer." + name;
  const bool on_left = read(resolved, left).boolean, on_right = read(resolved, right).boolean;
  if (on_left == on_right) return;
  const std::string& off = on_left ? right : left;
  const std::string& on = on_left ? left : right;
  if (resolved.is_explicit(off)) {
    resolved.warnings.push_back(resolved.describe(off) + " differs from " + resolved.describe(on) +
                                "; both are set to true.");
  }
  set_derived(resolved, off, Value::of_bool(true), on + " is true");
}

/// model.seq_length and dataset.seq_length are one number; the one that was set decides.
void match_sequence_length(ResolvedConfig& resolved) {
  RunConfig& config = resolved.config;
  const bool model_set = resolved.is_explicit("model.seq_length");
  if (config.dataset.seq_length && !model_set && config.model.seq_length != *config.dataset.seq_length) {
    set_derived(resolved, "model.seq_length", Value::of_integer(*config.dataset.seq_length), "dataset.seq_length");
  } else if (!config.dataset.seq_length && model_set) {
    set_derived(resolved, "dataset.seq_length", Value::of_integer(config.model.seq_length), "model.seq_length");
  }
}

void derive_model(ResolvedConfig& resolved) {
  ModelConfig& model = resolved.config.model;
  if (model.sequence_parallel && model.tensor_model_parallel_size <= 1) {
    resolved.warnings.push_back(resolved.describe("model.sequence_parallel") +
                                " is switched off: the tensor parallel size is 1.");
    set_derived(resolved, "model.sequence_parallel", Value::of_bool(false), "tensor parallel size 1");
  }
  if (model.pipeline_model_parallel_size > 1 && !model.pipeline_dtype) {
    model.pipeline_dtype = model.params_dtype;
    resolved.origins["model.pipeline_dtype"] = {Origin::Kind::kDerived, "derived: model.params_dtype"};
  }
  if (model.recompute_granularity == RecomputeGranularity::kSelective && !model.recompute_modules) {
    set_derived(resolved, "model.recompute_modules", Value::of_list({Value::of_string("core_attn")}),
                "selective recomputation");
  }
}

void warn_about_traps(ResolvedConfig& resolved) {
  const RunConfig& config = resolved.config;
  auto& warnings = resolved.warnings;
  const bool decay_differs = start_weight_decay_or_default(config) != config.optimizer.weight_decay ||
                             end_weight_decay_or_default(config) != config.optimizer.weight_decay;
  if (decay_differs && resolved.is_explicit("optimizer.weight_decay")) {
    const bool start = config.scheduler.start_weight_decay.has_value();
    warnings.push_back(resolved.describe("optimizer.weight_decay") + " does not act: " +
                       resolved.describe(start ? "scheduler.start_weight_decay" : "scheduler.end_weight_decay") +
                       " decides. Remove one of the two.");
  }
  if (config.model.num_moe_experts.value_or(0) >= 32 && !config.model.moe_router_dtype) {
    warnings.push_back(resolved.describe("model.num_moe_experts") +
                       " with model.moe_router_dtype unset: with 32 experts or more fp32 or fp64 is safer.");
  }
  if (config.model.multi_latent_attention &&
      config.model.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    warnings.push_back(resolved.describe("model.position_embedding_type") +
                       ": learned positions are added beside the rotation of multi-latent attention. Set it to rope "
                       "for rotation alone.");
  }
  if (config.checkpoint.load && config.checkpoint.load == config.checkpoint.save) {
    warnings.push_back(resolved.describe("checkpoint.load") +
                       " is also checkpoint.save: a run found there is continued.");
  }
  if (config.tokenizer.use_tokenizer_vocab_size && resolved.is_explicit("model.vocab_size")) {
    warnings.push_back(resolved.describe("model.vocab_size") + " gives way to the tokenizer's size, because " +
                       resolved.describe("tokenizer.use_tokenizer_vocab_size") + ".");
  }
}

void decide(ResolvedConfig& resolved, const std::string& field, const std::optional<bool>& given, bool automatic) {
  const std::string reason = given ? "comm_overlap" : "comm_overlap (automatic)";
  derive_field(resolved, field, Value::of_bool(given.value_or(automatic)), reason);
}

}  // namespace

void derive(ResolvedConfig& resolved, std::vector<Problem>& problems) {
  if (resolved.config.mixed_precision.given) {
    expand_precision_recipe(resolved, problems);
    copy_precision(resolved);
  }
  match_switch(resolved, "use_distributed_optimizer");
  match_switch(resolved, "overlap_param_gather");
  match_sequence_length(resolved);
  derive_model(resolved);
  warn_about_traps(resolved);
}

void apply_comm_overlap(ResolvedConfig& resolved, std::int64_t world_size) {
  const CommOverlapConfig& overlap = resolved.config.comm_overlap;
  if (!overlap.given) return;
  const ModelConfig& model = resolved.config.model;
  const bool pipeline = model.pipeline_model_parallel_size > 1;
  const bool interleaved = pipeline && model.virtual_pipeline_model_parallel_size.value_or(1) > 1;
  decide(resolved, "model.overlap_p2p_comm", overlap.overlap_p2p_comm, interleaved);
  decide(resolved, "model.batch_p2p_comm", overlap.batch_p2p_comm, pipeline && !interleaved);
  const std::int64_t replica = model_parallel_size(model);
  const bool sharded = resolved.config.ddp.use_distributed_optimizer && replica > 0 && world_size / replica > 1;
  if (sharded) {
    decide(resolved, "ddp.overlap_grad_reduce", overlap.overlap_grad_reduce, true);
    decide(resolved, "ddp.overlap_param_gather", overlap.overlap_param_gather, true);
    decide(resolved, "optimizer.overlap_param_gather", overlap.overlap_param_gather, true);
    decide(resolved, "ddp.align_param_gather", overlap.align_param_gather, interleaved);
    if (!resolved.is_explicit("ddp.bucket_size")) {
      const std::int64_t elements = overlap.bucket_size.value_or(std::int64_t{128} << 20);
      derive_field(resolved, "ddp.bucket_size", Value::of_integer(elements), "comm_overlap");
    }
  }
  if (overlap.overlap_moe_expert_parallel_comm) {
    decide(resolved, "model.overlap_moe_expert_parallel_comm", overlap.overlap_moe_expert_parallel_comm, false);
  }
  if (overlap.delay_wgrad_compute) decide(resolved, "model.delay_wgrad_compute", overlap.delay_wgrad_compute, false);
}

}  // namespace pharos::config
