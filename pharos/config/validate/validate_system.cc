// Rules of data, process groups, gradient buffers, logging and checkpoints
// (bridge-config.md 1.11–1.15, 1.17, 5.1, 9.1).
#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/config/overrides/value.h"
#include "pharos/config/validate/rule_checker.h"
#include "pharos/lens/setup/lens_config.h"

namespace pharos::config {
namespace {

bool is_number(const std::string& text) {
  const Value value = classify_word(text);
  return value.kind == Value::Kind::kInteger || value.kind == Value::Kind::kFloat;
}

/// Prefixes, or weight and prefix by turns; weights are positive.
void check_blend(RuleChecker& check, const std::string& field, const std::vector<std::string>& blend) {
  const bool weighted =
      std::any_of(blend.begin(), blend.end(), [](const std::string& entry) { return is_number(entry); });
  if (!weighted) return;
  bool valid = blend.size() % 2 == 0;
  for (std::size_t i = 0; i < blend.size(); ++i) {
    const Value entry = classify_word(blend[i]);
    const double weight = entry.kind == Value::Kind::kInteger ? static_cast<double>(entry.integer) : entry.number;
    valid = valid && is_number(blend[i]) == (i % 2 == 0) && (i % 2 == 1 || weight > 0);
  }
  check.require(valid, {field},
                check.show(field) +
                    " is neither a list of prefixes nor [weight, prefix, weight, prefix, …] with positive weights.",
                "For example [0.3, data/a, 0.7, data/b].");
}

void check_split(RuleChecker& check, bool has_blend) {
  const DatasetConfig& dataset = check.config().dataset;
  check.require(!has_blend || dataset.split, {"dataset.split"}, "dataset.split is not set, but there is data to split.",
                "For example dataset.split=[9999,8,2].");
  if (!dataset.split) return;
  double sum = 0;
  std::size_t num_parts = 0;
  bool valid = true;
  for (std::size_t start = 0; start <= dataset.split->size();) {
    const std::size_t end = std::min(dataset.split->find(',', start), dataset.split->size());
    std::string part = dataset.split->substr(start, end - start);
    std::erase(part, ' ');
    const Value share = classify_word(part);
    const double amount = share.kind == Value::Kind::kInteger ? static_cast<double>(share.integer) : share.number;
    valid = valid && is_number(part) && amount >= 0 && amount < 1e18;
    sum += amount;
    ++num_parts;
    start = end + 1;
  }
  check.require(valid && num_parts <= 3 && sum > 0, {"dataset.split"},
                check.show("dataset.split") + " is not up to three shares that add up to more than 0.",
                "For example 90,5,5.");
}

void check_tokenizer(RuleChecker& check) {
  const TokenizerConfig& tokenizer = check.config().tokenizer;
  const auto needs = [&](bool given, const std::string& field, const std::string& type) {
    check.require(given, {"tokenizer.tokenizer_type", field},
                  "tokenizer.tokenizer_type = " + type + " needs " + field + ".");
  };
  if (tokenizer.tokenizer_type) {
    switch (*tokenizer.tokenizer_type) {
      case TokenizerType::kNull:
        needs(tokenizer.vocab_size.has_value(), "tokenizer.vocab_size", "NullTokenizer");
        break;
      case TokenizerType::kGpt2Bpe:
        needs(tokenizer.vocab_file.has_value(), "tokenizer.vocab_file", "GPT2BPETokenizer");
        needs(tokenizer.merge_file.has_value(), "tokenizer.merge_file", "GPT2BPETokenizer");
        break;
      case TokenizerType::kByteLevel:
        break;
      default:
        needs(tokenizer.tokenizer_model.has_value(), "tokenizer.tokenizer_model",
              check.stored("tokenizer.tokenizer_type"));
    }
  }
  check.require(check.config().model.vocab_size || tokenizer.tokenizer_type || check.config().model.hf_path,
                {"model.vocab_size", "tokenizer.tokenizer_type"},
                "Neither model.vocab_size nor tokenizer.tokenizer_type is set: the vocabulary is unknown.",
                "Set one, for example tokenizer.tokenizer_type=ByteLevelTokenizer.");
  check.require(
      check.stored("tokenizer.chat_template") == "null" || check.stored("tokenizer.chat_template_path") == "null",
      {"tokenizer.chat_template", "tokenizer.chat_template_path"},
      "tokenizer.chat_template and chat_template_path are both set.");
}

void check_gradient_buffers(RuleChecker& check) {
  const DdpConfig& ddp = check.config().ddp;
  check.require(!ddp.average_in_collective || !check.config().model.calculate_per_token_loss,
                {"ddp.average_in_collective", "model.calculate_per_token_loss"},
                "model.calculate_per_token_loss excludes ddp.average_in_collective.",
                "Set ddp.average_in_collective=false.");
  check.require(!ddp.bucket_size || !ddp.num_buckets, {"ddp.bucket_size", "ddp.num_buckets"},
                "ddp.bucket_size and ddp.num_buckets are both set.");
  check.require(
      !ddp.overlap_param_gather || ddp.use_distributed_optimizer ||
          ddp.data_parallel_sharding_strategy != ShardingStrategy::kNoShard,
      {"ddp.overlap_param_gather", "ddp.use_distributed_optimizer", "ddp.data_parallel_sharding_strategy"},
      "ddp.overlap_param_gather needs ddp.use_distributed_optimizer or a ddp.data_parallel_sharding_strategy.",
      "Set ddp.use_distributed_optimizer=true.");
  const bool fsdp = check.stored("ddp.use_megatron_fsdp") == "true" || check.stored("dist.use_megatron_fsdp") == "true";
  check.require(!fsdp || check.purpose() == Purpose::kPlan, {"ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"},
                "Megatron FSDP needs fully sharded data parallelism, which this release cannot train with.");
  check.require(!(fsdp && check.stored("dist.use_torch_fsdp2") == "true"),
                {"dist.use_megatron_fsdp", "dist.use_torch_fsdp2"},
                "Megatron FSDP and torch FSDP2 exclude each other.");
  check.require(!(fsdp && check.config().dist.use_tp_pp_dp_mapping),
                {"ddp.use_megatron_fsdp", "dist.use_tp_pp_dp_mapping"},
                "Megatron FSDP excludes dist.use_tp_pp_dp_mapping.");
  check.require(fsdp || check.config().checkpoint.ckpt_format != CheckpointFormat::kFsdpDTensor,
                {"checkpoint.ckpt_format", "ddp.use_megatron_fsdp"},
                "checkpoint.ckpt_format = fsdp_dtensor needs Megatron FSDP.", "Use torch_dist.");
}

void check_trackers(RuleChecker& check) {
  const auto needs = [&](const std::string& field, const std::string& other) {
    check.require(check.stored(field) == "null" || check.stored(other) != "null", {field, other},
                  field + " needs " + other + ".");
  };
  needs("logger.wandb_project", "logger.wandb_exp_name");
  needs("logger.mlflow_experiment", "logger.mlflow_run_name");
  needs("logger.comet_project", "logger.comet_experiment_name");
  if (check.purpose() != Purpose::kTrain) return;
  for (const char* field : {"logger.wandb_project", "logger.mlflow_experiment", "logger.comet_project"}) {
    check.require(check.stored(field) == "null", {field},
                  check.show(field) + " needs an experiment tracker, which this release cannot write to.",
                  "Remove it; metrics.jsonl of the run folder has every step.");
  }
}

/// Names that telemetry knows; one at a time, so that each is reported.
void check_telemetry(RuleChecker& check) {
  const TelemetryConfig& telemetry = check.config().telemetry;
  const auto check_one = [&check](const char* field, const auto& set) {
    lens::LensConfig config;
    config.enabled = true;
    set(config);
    std::vector<std::string> warnings;
    try {
      lens::validate(config, warnings);
    } catch (const base::UserError& error) {
      check.fail({field}, error.parts().what, error.parts().fix);
    }
  };
  check_one("telemetry.span_groups", [&](lens::LensConfig& config) { config.span_groups = telemetry.span_groups; });
  check_one("telemetry.exporter", [&](lens::LensConfig& config) { config.exporter = telemetry.exporter; });
  check_one("telemetry.export_strategy",
            [&](lens::LensConfig& config) { config.export_strategy = telemetry.export_strategy; });
}

}  // namespace

void check_data(RuleChecker& check) {
  const DatasetConfig& dataset = check.config().dataset;
  const int num_sources =
      (dataset.data_path.empty() ? 0 : 1) + (dataset.blend.empty() ? 0 : 1) + (dataset.blend_per_split.empty() ? 0 : 1);
  check.require(num_sources <= 1, {"dataset.data_path", "dataset.blend", "dataset.blend_per_split"},
                "More than one of dataset.data_path, dataset.blend and dataset.blend_per_split is set.",
                "Use one of them.");
  check_blend(check, "dataset.data_path", dataset.data_path);
  check_blend(check, "dataset.blend", dataset.blend);
  for (const auto& blend : dataset.blend_per_split) check_blend(check, "dataset.blend_per_split", blend);
  check.require(dataset.blend_per_split.empty() || dataset.blend_per_split.size() == 3, {"dataset.blend_per_split"},
                "dataset.blend_per_split has not three blends (training, validation, test).");
  check.require(dataset.blend_per_split.empty() || !dataset.split, {"dataset.split", "dataset.blend_per_split"},
                "dataset.split has no meaning with dataset.blend_per_split.", "Set dataset.split=null.");
  check.require(!dataset.fast_cache_load || !dataset.blend_per_split.empty(),
                {"dataset.fast_cache_load", "dataset.blend_per_split"},
                "dataset.fast_cache_load needs dataset.blend_per_split.");
  check_split(check, !dataset.data_path.empty() || !dataset.blend.empty());
  const bool trainable =
      dataset.dataloader_type == DataloaderType::kSingle || dataset.dataloader_type == DataloaderType::kCyclic;
  check.require(trainable || check.purpose() == Purpose::kPlan, {"dataset.dataloader_type"},
                check.show("dataset.dataloader_type") +
                    " needs a fine-tuning or external loader, which this release cannot train with.",
                "Use single or cyclic.");
  check_tokenizer(check);
}

void check_system(RuleChecker& check) {
  check_telemetry(check);
  const ProfilingConfig& profiling = check.config().profiling;
  check.require(!(profiling.use_nsys_profiler && profiling.use_pytorch_profiler),
                {"profiling.use_nsys_profiler", "profiling.use_pytorch_profiler"},
                "profiling.use_nsys_profiler and use_pytorch_profiler are both true.", "Use one profiler.");
  check.require(
      profiling.profile_step_end >= profiling.profile_step_start,
      {"profiling.profile_step_end", "profiling.profile_step_start"},
      check.show("profiling.profile_step_end") + " is before " + check.show("profiling.profile_step_start") + ".");
  check.require(!check.config().comm_overlap.given || check.config().comm_overlap.tp_comm_overlap,
                {"comm_overlap.tp_comm_overlap"}, "comm_overlap.tp_comm_overlap is required in section comm_overlap.",
                "Set it to true or false.");
  for (const auto& [name, value] : check.config().env_vars) {
    check.require(name.find('=') == std::string::npos && value.find('\0') == std::string::npos, {"env_vars"},
                  "env_vars has an entry " + name + ", which is no variable name.");
  }
  const bool gloo = check.config().dist.use_gloo_process_groups;
  check.require(!(check.stored("dist.use_decentralized_pg") == "true" && gloo),
                {"dist.use_decentralized_pg", "dist.use_gloo_process_groups"},
                "dist.use_decentralized_pg excludes dist.use_gloo_process_groups.",
                "Set dist.use_gloo_process_groups=false.");
  check.require(!(check.stored("model.cuda_graph_impl") == "full_iteration" &&
                  check.config().rerun_state_machine.check_for_nan_in_loss),
                {"model.cuda_graph_impl", "rerun_state_machine.check_for_nan_in_loss"},
                "A full-iteration CUDA graph excludes rerun_state_machine.check_for_nan_in_loss.");
  check_gradient_buffers(check);
  check_trackers(check);
}

void check_checkpoint(RuleChecker& check) {
  const CheckpointConfig& checkpoint = check.config().checkpoint;
  const bool distributed_format = checkpoint.ckpt_format == CheckpointFormat::kTorchDist ||
                                  checkpoint.ckpt_format == CheckpointFormat::kFsdpDTensor;
  check.require(checkpoint.most_recent_k != 0, {"checkpoint.most_recent_k"},
                "checkpoint.most_recent_k = 0 keeps no checkpoint.", "Use -1 to keep all, or a number of at least 1.");
  check.require(!checkpoint.load_main_params_from_ckpt || !checkpoint.load_optim,
                {"checkpoint.load_main_params_from_ckpt", "checkpoint.load_optim"},
                "checkpoint.load_main_params_from_ckpt needs checkpoint.load_optim = false.");
  check.require(!checkpoint.async_save || distributed_format, {"checkpoint.async_save", "checkpoint.ckpt_format"},
                "checkpoint.async_save needs checkpoint.ckpt_format torch_dist or fsdp_dtensor.");
  check.require(!checkpoint.async_save || checkpoint.save, {"checkpoint.async_save", "checkpoint.save"},
                "checkpoint.async_save needs checkpoint.save.");
  check.require(!checkpoint.async_save || check.stored("checkpoint.use_persistent_ckpt_worker") == "true",
                {"checkpoint.async_save", "checkpoint.use_persistent_ckpt_worker"},
                "checkpoint.async_save needs checkpoint.use_persistent_ckpt_worker.");
  check.require(!checkpoint.also_save_hf_checkpoint || checkpoint.hf_source_path || check.config().model.hf_path,
                {"checkpoint.also_save_hf_checkpoint", "checkpoint.hf_source_path"},
                "checkpoint.also_save_hf_checkpoint needs checkpoint.hf_source_path or model.hf_path.");
  check.require(check.config().dist.use_gloo_process_groups || !check.config().ddp.use_distributed_optimizer ||
                    distributed_format,
                {"dist.use_gloo_process_groups", "checkpoint.ckpt_format"},
                "A distributed optimizer without dist.use_gloo_process_groups needs checkpoint.ckpt_format torch_dist "
                "or fsdp_dtensor.");
  check.require(check.stored("peft.scheme") == "null" || checkpoint.pretrained_checkpoint,
                {"peft.scheme", "checkpoint.pretrained_checkpoint"},
                "peft.scheme needs checkpoint.pretrained_checkpoint.");
}

}  // namespace pharos::config
