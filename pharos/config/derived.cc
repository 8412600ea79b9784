#include "pharos/config/derived.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/config/grammar/pipeline_layout.h"

namespace pharos::config {
namespace {

std::int64_t require(const std::optional<std::int64_t>& value, const char* field) {
  PHAROS_CHECK(value.has_value(), std::string(field) + " is not set");
  return *value;
}

bool is_folded(const ModelConfig& model) {
  return model.pipeline_schedule == "zbv" || model.pipeline_schedule == "dualpipev";
}

}  // namespace

std::int64_t ffn_hidden_size_or_default(const ModelConfig& model) {
  return model.ffn_hidden_size ? *model.ffn_hidden_size : 4 * require(model.hidden_size, "model.hidden_size");
}

std::int64_t kv_channels_or_default(const ModelConfig& model) {
  if (model.kv_channels) return *model.kv_channels;
  return require(model.hidden_size, "model.hidden_size") /
         require(model.num_attention_heads, "model.num_attention_heads");
}

std::int64_t num_query_groups_or_default(const ModelConfig& model) {
  return model.num_query_groups ? *model.num_query_groups
                                : require(model.num_attention_heads, "model.num_attention_heads");
}

std::int64_t moe_ffn_hidden_size_or_default(const ModelConfig& model) {
  return model.moe_ffn_hidden_size ? *model.moe_ffn_hidden_size : ffn_hidden_size_or_default(model);
}

std::int64_t expert_tensor_parallel_size_or_default(const ModelConfig& model) {
  if (model.expert_tensor_parallel_size) return *model.expert_tensor_parallel_size;
  return model.expert_model_parallel_size > 1 ? 1 : model.tensor_model_parallel_size;
}

std::int64_t padded_vocab_size(const ModelConfig& model) {
  const std::int64_t size = require(model.vocab_size, "model.vocab_size");
  if (!model.should_pad_vocab) return size;
  const std::int64_t unit = model.make_vocab_size_divisible_by * model.tensor_model_parallel_size;
  return (size + unit - 1) / unit * unit;
}

void apply_vocab_rule(RunConfig& config, std::int64_t tokenizer_vocab_size) {
  ModelConfig& model = config.model;
  if (config.tokenizer.use_tokenizer_vocab_size || !model.vocab_size) {
    model.vocab_size = tokenizer_vocab_size;
    model.should_pad_vocab = true;
    return;
  }
  if (*model.vocab_size >= tokenizer_vocab_size) return;
  throw base::UserError({.what = "model.vocab_size = " + std::to_string(*model.vocab_size) +
                                 " is smaller than the tokenizer's " + std::to_string(tokenizer_vocab_size) +
                                 " tokens.",
                         .why = "Some token ids would have no embedding.",
                         .fix = model.hf_path ? "The size is that of the folder: use tokenizer.tokenizer_type="
                                                "NullTokenizer and data of its token ids."
                                              : "Leave model.vocab_size out, or set "
                                                "tokenizer.use_tokenizer_vocab_size=true."});
}

bool is_moe_layer(const ModelConfig& model, std::int64_t layer) {
  if (!model.num_moe_experts) return false;
  if (const auto* frequency = std::get_if<std::int64_t>(&model.moe_layer_freq)) return layer % *frequency == 0;
  const auto& pattern = std::get<std::vector<std::int64_t>>(model.moe_layer_freq);
  return layer < static_cast<std::int64_t>(pattern.size()) && pattern[static_cast<std::size_t>(layer)] == 1;
}

std::string pipeline_schedule_or_default(const ModelConfig& model) {
  if (model.pipeline_schedule) return *model.pipeline_schedule;
  return num_model_chunks(model) > 1 ? "interleaved" : "1f1b";
}

std::int64_t num_model_chunks(const ModelConfig& model) {
  if (model.pipeline_model_parallel_layout) {
    const auto num_stages =
        static_cast<std::int64_t>(parse_pipeline_layout(*model.pipeline_model_parallel_layout).size());
    return std::max<std::int64_t>(1, num_stages / model.pipeline_model_parallel_size);
  }
  if (model.virtual_pipeline_model_parallel_size) return *model.virtual_pipeline_model_parallel_size;
  return is_folded(model) ? 2 : 1;
}

std::int64_t pipeline_rank_of_stage(const ModelConfig& model, std::int64_t stage) {
  const std::int64_t size = model.pipeline_model_parallel_size, rank = stage % size;
  return is_folded(model) && stage / size % 2 == 1 ? size - 1 - rank : rank;
}

std::int64_t model_parallel_size(const ModelConfig& model) {
  return model.tensor_model_parallel_size * model.pipeline_model_parallel_size * model.context_parallel_size;
}

std::int64_t data_parallel_size(const ModelConfig& model, std::int64_t world_size) {
  const std::int64_t size = model_parallel_size(model);
  PHAROS_CHECK(size > 0 && world_size % size == 0, "world size is not divisible by TP × PP × CP");
  return world_size / size;
}

std::int64_t eval_global_batch_size_or_default(const RunConfig& config) {
  const auto& size = config.validation.eval_global_batch_size;
  return size ? *size : require(config.train.global_batch_size, "train.global_batch_size");
}

std::int64_t eval_micro_batch_size_or_default(const RunConfig& config) {
  const auto& size = config.validation.eval_micro_batch_size;
  return size ? *size : require(config.train.micro_batch_size, "train.micro_batch_size");
}

double start_weight_decay_or_default(const RunConfig& config) {
  return config.scheduler.start_weight_decay.value_or(config.optimizer.weight_decay);
}

double end_weight_decay_or_default(const RunConfig& config) {
  return config.scheduler.end_weight_decay.value_or(config.optimizer.weight_decay);
}

DType compute_dtype(const ModelConfig& model) {
  return model.bf16 ? DType::kBFloat16 : model.fp16 ? DType::kFloat16 : DType::kFloat32;
}

}  // namespace pharos::config
