// Values that follow from the configuration. All are pure functions; sizes are counts unless said otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "pharos/config/run_config.h"

namespace pharos::config {

/// model.ffn_hidden_size, or 4 × hidden_size. Requires hidden_size.
std::int64_t ffn_hidden_size_or_default(const ModelConfig& model);
/// model.kv_channels (width of one head), or hidden_size / num_attention_heads.
std::int64_t kv_channels_or_default(const ModelConfig& model);
/// model.num_query_groups, or num_attention_heads.
std::int64_t num_query_groups_or_default(const ModelConfig& model);
/// model.moe_ffn_hidden_size, or ffn_hidden_size_or_default().
std::int64_t moe_ffn_hidden_size_or_default(const ModelConfig& model);
/// model.expert_tensor_parallel_size, or 1 when expert parallel, or the tensor parallel size.
std::int64_t expert_tensor_parallel_size_or_default(const ModelConfig& model);
/// Rows of the embedding: vocab_size rounded up to make_vocab_size_divisible_by × TP when should_pad_vocab, else
/// vocab_size.
std::int64_t padded_vocab_size(const ModelConfig& model);
/// The vocabulary rule: the model's size, given a tokenizer of `tokenizer_vocab_size` tokens. Takes the tokenizer's
/// size (and turns padding on) when tokenizer.use_tokenizer_vocab_size or model.vocab_size is unset; a preset smaller
/// than the tokenizer is a UserError; otherwise nothing changes.
void apply_vocab_rule(RunConfig& config, std::int64_t tokenizer_vocab_size);
/// True when layer `layer` (0-based) holds experts, by model.moe_layer_freq.
bool is_moe_layer(const ModelConfig& model, std::int64_t layer);

/// model.pipeline_schedule, or "interleaved" with several model chunks per rank, else "1f1b".
std::string pipeline_schedule_or_default(const ModelConfig& model);
/// Model chunks of a pipeline rank: of model.pipeline_model_parallel_layout, or virtual_pipeline_model_parallel_size,
/// or 2 for the folded schedules (zbv, dualpipev), else 1. Requires a valid layout.
std::int64_t num_model_chunks(const ModelConfig& model);
/// The pipeline rank of a stage (from 0, in the order of the model): stage mod pipeline size; in the folded schedules
/// the second chunks run back. A schedule from a file may place its stages otherwise.
std::int64_t pipeline_rank_of_stage(const ModelConfig& model, std::int64_t stage);

/// Ranks that share one replica of the model: TP × PP × CP.
std::int64_t model_parallel_size(const ModelConfig& model);
/// world_size / model_parallel_size. Requires divisibility.
std::int64_t data_parallel_size(const ModelConfig& model, std::int64_t world_size);

/// Global batch size in samples at the step that starts after `consumed_samples`; follows rampup_batch_size and
/// step_batch_size_schedule (thresholds in tokens of dataset.seq_length), and decrease_batch_size_if_needed.
std::int64_t global_batch_size_at(const RunConfig& config, std::int64_t consumed_samples, std::int64_t data_parallel);
/// Optimizer steps of the whole run (train_iters, or as many as train_samples needs, with ramp-up).
std::int64_t total_train_iterations(const RunConfig& config, std::int64_t data_parallel);
/// Samples the training run consumes.
std::int64_t total_train_samples(const RunConfig& config, std::int64_t data_parallel);
/// validation.eval_global_batch_size, or train.global_batch_size.
std::int64_t eval_global_batch_size_or_default(const RunConfig& config);
/// validation.eval_micro_batch_size, or train.micro_batch_size.
std::int64_t eval_micro_batch_size_or_default(const RunConfig& config);
/// scheduler.start_weight_decay, or optimizer.weight_decay; likewise the end.
double start_weight_decay_or_default(const RunConfig& config);
double end_weight_decay_or_default(const RunConfig& config);
/// "fp32", "bf16" or "fp16": what the layers compute in.
DType compute_dtype(const ModelConfig& model);

}  // namespace pharos::config
