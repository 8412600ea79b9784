#include "pharos/model/theoretical_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pharos/config/derived.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

constexpr double kMegabyte = 1024.0 * 1024.0;
constexpr double kBillion = 1e9;

double real(std::int64_t value) { return static_cast<double>(value); }

/// Vectors a norm holds: weight, and for LayerNorm a bias.
double norm_vectors(const ModelConfig& model) { return model.normalization == config::Normalization::kRmsNorm ? 1 : 2; }

double attention_parameters(const ModelConfig& model) {
  const double hidden = real(*model.hidden_size), heads = real(*model.num_attention_heads);
  if (!model.multi_latent_attention) {
    const double width = real(config::kv_channels_or_default(model));
    return 2 * hidden * width * (heads + real(config::num_query_groups_or_default(model)));
  }
  const double norm = norm_vectors(model), rotary = real(model.qk_pos_emb_head_dim), value = real(model.v_head_dim);
  const double query_width = heads * (real(model.qk_head_dim) + rotary);
  const double query =
      model.q_lora_rank ? real(*model.q_lora_rank) * (hidden + query_width + norm) : hidden * query_width;
  const double key_value = real(model.kv_lora_rank) * (hidden + heads * (real(model.qk_head_dim) + value) + norm);
  return query + key_value + hidden * rotary + heads * value * hidden;
}

/// Parameters of one layer, by how they are divided over ranks.
struct Layer {
  double attention;       ///< tensor parallel
  double mlp;             ///< tensor parallel: dense, or shared experts
  double experts;         ///< expert parallel
  double active_experts;  ///< of these, what a token passes through
  double router;          ///< whole on every rank
  double norms;           ///< likewise
};

Layer layer_of(const ModelConfig& model, bool is_moe) {
  const double hidden = real(*model.hidden_size), gated = model.gated_linear_unit ? 1.5 : 1;
  Layer layer{attention_parameters(model), 0, 0, 0, 0, 2 * hidden * norm_vectors(model)};
  if (!is_moe) {
    layer.mlp = 2 * hidden * real(config::ffn_hidden_size_or_default(model)) * gated;
    return layer;
  }
  const double expert = 2 * hidden * real(config::moe_ffn_hidden_size_or_default(model)) * gated;
  const double num_experts = real(*model.num_moe_experts);
  layer.mlp = 2 * hidden * real(model.moe_shared_expert_intermediate_size.value_or(0)) * gated;
  layer.experts = expert * num_experts;
  layer.active_experts = expert * real(model.moe_router_topk);
  layer.router = hidden * num_experts;
  if (model.moe_router_enable_expert_bias) layer.router += num_experts;
  if (model.moe_shared_expert_gate) layer.router += hidden;
  return layer;
}

double schedule_factor(const ModelConfig& model, const EstimateSetup& setup) {
  const double pipeline = real(model.pipeline_model_parallel_size);
  if (model.virtual_pipeline_model_parallel_size) {
    return 1 + (pipeline - 1) / (pipeline * real(*model.virtual_pipeline_model_parallel_size));
  }
  return pipeline > 1 ? std::min(1.0, real(setup.num_microbatches) / pipeline) : 1;
}

/// All layers, and input and dropout of the embedding, of the microbatches in flight on the first stage.
double activations_of_layers(const ModelConfig& model, const EstimateSetup& setup, double layer_bytes) {
  const double tokens = real(model.seq_length) * real(setup.micro_batch_size);
  const double pipeline = real(model.pipeline_model_parallel_size);
  const double embedding = tokens * pipeline * (8 + real(*model.hidden_size));
  return (layer_bytes * real(*model.num_layers) + embedding) * schedule_factor(model, setup);
}

std::string billions(const char* what, double count, const char* format) {
  return fmt::format("{} in billions: {}", what, fmt::format(fmt::runtime(format), count / kBillion));
}

}  // namespace

ParameterEstimate estimate_parameters(const ModelConfig& model) {
  const std::int64_t layers = *model.num_layers;
  const double tensor = real(model.tensor_model_parallel_size), pipeline = real(model.pipeline_model_parallel_size);
  const double expert_ranks =
      real(config::expert_tensor_parallel_size_or_default(model) * model.expert_model_parallel_size);
  const double table = real(*model.hidden_size) * real(config::padded_vocab_size(model));
  const double final_norm = norm_vectors(model) * real(*model.hidden_size);
  ParameterEstimate sum;
  double active_experts = 0;
  for (std::int64_t i = 0; i < layers; ++i) {
    const Layer layer = layer_of(model, config::is_moe_layer(model, i));
    sum.attention += layer.attention;
    sum.mlp += layer.mlp;
    sum.experts += layer.experts;
    active_experts += layer.active_experts;
    sum.router += layer.router;
    sum.norms += layer.norms;
  }
  sum.norms += final_norm;
  sum.block = sum.attention + sum.mlp + sum.experts + sum.router + sum.norms;
  sum.active_block = sum.block - sum.experts + active_experts;
  const double predicted = real(model.mtp_num_layers.value_or(0));
  const Layer last = layer_of(model, config::is_moe_layer(model, layers - 1));
  const double mtp_split = predicted * (last.attention + last.mlp), mtp_whole = predicted * (last.router + last.norms);
  sum.mtp = mtp_split + mtp_whole + predicted * last.experts;
  sum.active_mtp = mtp_split + mtp_whole + predicted * last.active_experts;
  sum.embedding = table;
  sum.output = model.share_embeddings_and_output_weights ? 0 : table;
  sum.total = sum.block + sum.mtp + sum.embedding + sum.output;
  sum.active_total = sum.active_block + sum.active_mtp + sum.embedding + sum.output;
  const double split = (sum.attention + sum.mlp) / pipeline, whole = (sum.router + sum.norms) / pipeline;
  const double experts = sum.experts / pipeline / expert_ranks;
  sum.most_loaded_expert_shard = experts + predicted * last.experts / expert_ranks;
  sum.most_loaded_shard = (split + mtp_split + table) / tensor + whole + mtp_whole + sum.most_loaded_expert_shard;
  if (model.pipeline_model_parallel_size == 1) sum.most_loaded_shard += sum.output / tensor;
  sum.other_shards = split / tensor + whole + experts;
  return sum;
}

double estimate_weight_and_optimizer_bytes(const ParameterEstimate& parameters, const EstimateSetup& setup) {
  if (!setup.distributed_optimizer) return 18 * parameters.most_loaded_shard;
  const double experts = parameters.most_loaded_expert_shard;
  return (parameters.most_loaded_shard - experts) * (6 + 12 / real(setup.data_parallel_size)) +
         experts * (6 + 12 / real(setup.expert_data_parallel_size));
}

ActivationEstimate estimate_activations_with_sequence_parallel(const ModelConfig& model, const EstimateSetup& setup) {
  const double tensor = real(model.tensor_model_parallel_size), hidden = real(*model.hidden_size);
  const double tokens = real(model.seq_length) * real(setup.micro_batch_size);
  const double layer = tokens * (18 * hidden + 4 * real(config::ffn_hidden_size_or_default(model)));
  double total = activations_of_layers(model, setup, layer);
  if (model.pipeline_model_parallel_size == 1) total += 4 * tokens * (hidden + real(config::padded_vocab_size(model)));
  return {layer / tensor, total / tensor};
}

ActivationEstimate estimate_activations_without_sequence_parallel(const ModelConfig& model,
                                                                  const EstimateSetup& setup) {
  const double tensor = real(model.tensor_model_parallel_size), hidden = real(*model.hidden_size);
  const double tokens = real(model.seq_length) * real(setup.micro_batch_size);
  const double layer = tokens * hidden * (10 + 24 / tensor);
  double total = activations_of_layers(model, setup, layer);
  if (model.pipeline_model_parallel_size == 1) {
    total += 2 * tokens * (real(config::padded_vocab_size(model)) / tensor + hidden);
  }
  return {layer, total * 1.05};
}

MemoryEstimate estimate_memory(const ModelConfig& model, const EstimateSetup& setup) {
  MemoryEstimate memory;
  memory.parameters = estimate_parameters(model);
  memory.weight_and_optimizer_bytes = estimate_weight_and_optimizer_bytes(memory.parameters, setup);
  memory.with_sequence_parallel =
      model.sequence_parallel && model.recompute_granularity == config::RecomputeGranularity::kSelective;
  memory.activations = memory.with_sequence_parallel ? estimate_activations_with_sequence_parallel(model, setup)
                                                     : estimate_activations_without_sequence_parallel(model, setup);
  const std::int64_t pipeline = model.pipeline_model_parallel_size;
  if (model.virtual_pipeline_model_parallel_size) {
    memory.interleaving_penalty = schedule_factor(model, setup);
    memory.in_flight_microbatches = static_cast<std::int64_t>(std::ceil(memory.interleaving_penalty * real(pipeline)));
  } else {
    memory.in_flight_microbatches = std::min(setup.num_microbatches, pipeline);
  }
  return memory;
}

std::vector<std::string> render_parameter_lines(const ModelConfig& model, const ParameterEstimate& parameters) {
  // The first lines have one blank more than the others, as Megatron's have.
  std::vector<std::string> lines{
      billions("Number of parameters in transformer block", parameters.block, "{: .2f}"),
      billions("Number of active parameters in transformer block", parameters.active_block, "{: .2f}")};
  if (model.mtp_num_layers) {
    lines.push_back(billions("Number of parameters in mtp block", parameters.mtp, "{: .2f}"));
  }
  const double tables = parameters.embedding + parameters.output;
  lines.push_back(billions("Number of parameters in embedding layers", tables, "{:.2f}"));
  lines.push_back(billions("Total number of parameters", parameters.total, "{:.2f}"));
  lines.push_back(billions("Total number of active parameters", parameters.active_total, "{:.2f}"));
  lines.push_back(billions("Number of parameters in most loaded shard", parameters.most_loaded_shard, "{:.4f}"));
  if (model.pipeline_model_parallel_size > 1) {
    lines.push_back(billions("Number of parameters in other shards", parameters.other_shards, "{:.4f}"));
  }
  return lines;
}

std::vector<std::string> render_memory_lines(const ModelConfig& model, const MemoryEstimate& memory) {
  std::vector<std::string> lines = render_parameter_lines(model, memory.parameters);
  lines.push_back(fmt::format("Activation memory footprint per transformer layer{}: {:.1f} MB",
                              memory.with_sequence_parallel ? "" : " (precise, without SP)",
                              memory.activations.layer_bytes / kMegabyte));
  if (memory.interleaving_penalty > 0) {
    lines.push_back(fmt::format("Memory penalty from interleaved schedule: {:.2f}", memory.interleaving_penalty));
  }
  if (model.pipeline_model_parallel_size > 1) {
    lines.push_back(fmt::format("Number of in-flight microbatches: {}", memory.in_flight_microbatches));
  }
  const double weights = memory.weight_and_optimizer_bytes / kMegabyte;
  const double activations = memory.activations.total_bytes / kMegabyte;
  lines.push_back(fmt::format(
      "Theoretical memory footprints: weight and optimizer={:.2f} MB, activation={:.2f} MB, total={:.2f} MB", weights,
      activations, weights + activations));
  return lines;
}

}  // namespace pharos::model
