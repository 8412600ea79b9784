#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

Row key_value_heads(std::int64_t otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            model.num_query_groups = reader.count("num_key_value_heads", config::kMostHeads);
            if (model.num_query_groups) return;
            const bool is_default = otherwise > 0 && !reader.has("num_key_value_heads");
            model.num_query_groups = is_default ? otherwise : model.num_attention_heads;
          },
          [](const ModelConfig& model, json& written) {
            if (const auto groups = model.num_query_groups ? model.num_query_groups : model.num_attention_heads)
              written["num_key_value_heads"] = *groups;
          }};
}

/// Without a default the width follows from hidden_size, which parse_hf_config() does for every family.
Row head_width(std::int64_t otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            model.kv_channels = reader.count("head_dim", config::kMostHeads);
            if (!model.kv_channels && otherwise > 0 && !reader.has("head_dim")) model.kv_channels = otherwise;
          },
          [](const ModelConfig& model, json& written) {
            if (model.kv_channels) {
              written["head_dim"] = *model.kv_channels;
            } else if (model.hidden_size && model.num_attention_heads) {
              written["head_dim"] = *model.hidden_size / *model.num_attention_heads;
            }
          }};
}

Row feed_forward_width() {
  return {[](Reader& reader, ModelConfig& model) {
            model.ffn_hidden_size = reader.required_count("intermediate_size", 8 * config::kMostWidth);
          },
          [](const ModelConfig& model, json& written) {
            if (const auto width = model.ffn_hidden_size ? model.ffn_hidden_size : model.hidden_size)
              written["intermediate_size"] = model.ffn_hidden_size ? *width : 4 * *width;
          }};
}

}  // namespace

std::vector<Row> llama_like(const LlamaLike& defaults) {
  return {
      count("num_hidden_layers", &ModelConfig::num_layers, config::kMostLayers),
      count("hidden_size", &ModelConfig::hidden_size),
      count("num_attention_heads", &ModelConfig::num_attention_heads, config::kMostHeads),
      count("max_position_embeddings", &ModelConfig::seq_length, config::kMostVocabulary),
      feed_forward_width(),
      key_value_heads(defaults.num_key_value_heads),
      head_width(defaults.head_dim),
      constant(&ModelConfig::normalization, config::Normalization::kRmsNorm),
      positive("rms_norm_eps", &ModelConfig::layernorm_epsilon, defaults.rms_norm_eps),
      constant(&ModelConfig::gated_linear_unit, true),
      activation(defaults.activation_key, defaults.activation),
      constant(&ModelConfig::add_bias_linear, false),
      dropout("attention_dropout", &ModelConfig::attention_dropout, 0),
      constant(&ModelConfig::hidden_dropout, 0.0),
      flag("tie_word_embeddings", &ModelConfig::share_embeddings_and_output_weights, defaults.tie_word_embeddings),
      rotary(defaults.rotary),
  };
}

}  // namespace pharos::hf
