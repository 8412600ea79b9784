#include "pharos/model/flops.h"

#include <algorithm>
#include <vector>

#include "pharos/config/derived.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

/// Forward and backward of one multiply-add: 2 operations in the forward pass, twice as many in the backward pass.
constexpr double kOperations = 6;

struct Attention {
  double projections;  ///< multiply-adds a token of the matrices around the core
  double core;         ///< multiply-adds a token and attended token
};

Attention attention_of(const ModelConfig& model) {
  const auto hidden = static_cast<double>(*model.hidden_size), heads = static_cast<double>(*model.num_attention_heads);
  if (!model.multi_latent_attention) {
    const auto width = static_cast<double>(config::kv_channels_or_default(model));
    const auto groups = static_cast<double>(config::num_query_groups_or_default(model));
    const double query_width = width * heads;
    return {hidden * (query_width + 2 * width * groups) + query_width * hidden, 2 * query_width};
  }
  // Multi-latent attention; + 1 is the norm of a latent, which Megatron counts here as one multiply-add an element.
  const auto rotary = static_cast<double>(model.qk_pos_emb_head_dim), value = static_cast<double>(model.v_head_dim);
  const double query_key = static_cast<double>(model.qk_head_dim) + rotary;
  const auto kv_rank = static_cast<double>(model.kv_lora_rank);
  double query = hidden * heads * query_key;
  if (model.q_lora_rank) query = static_cast<double>(*model.q_lora_rank) * (hidden + heads * query_key + 1);
  const double key_value = kv_rank * (hidden + heads * (static_cast<double>(model.qk_head_dim) + value) + 1);
  return {query + key_value + hidden * rotary + heads * value * hidden, heads * (query_key + value)};
}

/// Tokens a token of layer `layer` (from 0) attends to on average in sequences of mean length `length`.
double attended_tokens(const ModelConfig& model, std::int64_t layer, double length) {
  const std::int64_t window = attention_window(model, layer);
  if (window == 0 || static_cast<double>(window) >= length) return length / 2;
  const auto width = static_cast<double>(window);
  return width - width * (width - 1) / (2 * length);
}

double mlp_multiply_adds(const ModelConfig& model, bool is_moe) {
  const double matrices = model.gated_linear_unit ? 3 : 2;
  double inner = static_cast<double>(config::ffn_hidden_size_or_default(model));
  if (is_moe) {
    inner = static_cast<double>(config::moe_ffn_hidden_size_or_default(model) * model.moe_router_topk +
                                model.moe_shared_expert_intermediate_size.value_or(0));
  }
  return static_cast<double>(*model.hidden_size) * inner * matrices;
}

/// Multiply-adds a token.
struct MultiplyAdds {
  double matrices = 0;
  double attention = 0;

  MultiplyAdds& operator+=(const MultiplyAdds& other) {
    matrices += other.matrices;
    attention += other.attention;
    return *this;
  }
};

/// MTP layers, which follow the last one, are like it.
MultiplyAdds layer_multiply_adds(const ModelConfig& model, std::int64_t layer, double length, bool full_attention) {
  const Attention attention = attention_of(model);
  const double attended = full_attention ? length : attended_tokens(model, layer, length);
  const bool is_moe = config::is_moe_layer(model, std::min(layer, *model.num_layers - 1));
  return {attention.projections + mlp_multiply_adds(model, is_moe), attention.core * attended};
}

MultiplyAdds output_multiply_adds(const ModelConfig& model, double length, bool full_attention) {
  const std::int64_t predicted = model.mtp_num_layers.value_or(0);
  const auto hidden = static_cast<double>(*model.hidden_size), mtp = static_cast<double>(predicted);
  MultiplyAdds sum{mtp * (3 * hidden + 2 * hidden * hidden) +
                   hidden * static_cast<double>(config::padded_vocab_size(model)) * (1 + mtp)};
  for (std::int64_t i = 0; i < predicted; ++i)
    sum += layer_multiply_adds(model, *model.num_layers + i, length, full_attention);
  return sum;
}

double count(const ModelConfig& model, const SequenceSums& sequences, bool full_attention) {
  if (sequences.tokens == 0) return 0;
  const double length = sequences.squares / sequences.tokens;
  MultiplyAdds per_token = output_multiply_adds(model, length, full_attention);
  for (std::int64_t layer = 0; layer < *model.num_layers; ++layer)
    per_token += layer_multiply_adds(model, layer, length, full_attention);
  return kOperations * sequences.tokens * (per_token.matrices + per_token.attention);
}

ForwardFlops forward_flops(const MultiplyAdds& sum) { return {2 * sum.matrices, 2 * sum.attention}; }

}  // namespace

std::int64_t attention_window(const ModelConfig& model, std::int64_t layer) {
  if (!model.window_size || model.window_size->front() < 0) return 0;
  if (model.window_attn_skip_freq) {
    if (const auto* every = std::get_if<std::int64_t>(&*model.window_attn_skip_freq)) {
      if ((layer + 1) % *every == 0) return 0;
    } else {
      const auto& pattern = std::get<std::vector<std::int64_t>>(*model.window_attn_skip_freq);
      const auto index = static_cast<std::size_t>(layer);
      if (index >= pattern.size() || pattern[index] == 0) return 0;
    }
  }
  return model.window_size->front() + 1;  // (left, right) counts the tokens before the token itself
}

SequenceSums SequenceSums::unpacked(std::int64_t batch, std::int64_t length) {
  const auto sequences = static_cast<double>(batch), tokens = static_cast<double>(length);
  return {sequences * tokens, sequences * tokens * tokens};
}

double training_flops(const ModelConfig& model, const SequenceSums& sequences) {
  return count(model, sequences, false);
}

double training_flops(const ModelConfig& model, std::int64_t global_batch_size) {
  return training_flops(model, SequenceSums::unpacked(global_batch_size, model.seq_length));
}

double full_attention_training_flops(const ModelConfig& model, const SequenceSums& sequences) {
  return count(model, sequences, true);
}

double full_attention_training_flops(const ModelConfig& model, std::int64_t global_batch_size) {
  return full_attention_training_flops(model, SequenceSums::unpacked(global_batch_size, model.seq_length));
}

ForwardFlops layer_forward_flops(const ModelConfig& model, std::int64_t layer) {
  return forward_flops(layer_multiply_adds(model, layer, static_cast<double>(model.seq_length), false));
}

double mlp_forward_flops(const ModelConfig& model, std::int64_t layer) {
  return 2 * mlp_multiply_adds(model, config::is_moe_layer(model, std::min(layer, *model.num_layers - 1)));
}

ForwardFlops output_forward_flops(const ModelConfig& model) {
  return forward_flops(output_multiply_adds(model, static_cast<double>(model.seq_length), false));
}

}  // namespace pharos::model
