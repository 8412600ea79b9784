// Declarations of multi-latent attention (bridge-config.md 4.4).
#include <cmath>

#include "pharos/config/derived.h"
#include "pharos/model/layers.h"
#include "pharos/model/layers/parts.h"
#include "pharos/nn/rotary.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

nn::Norm declare_latent_norm(const ModelConfig& config, const std::string& name, std::int64_t width,
                             const Placement& placement) {
  nn::Norm norm = declare_norm(config, name, width, placement.parallel.sequence);
  norm.epsilon = config.mla_latent_layernorm_epsilon.value_or(config.layernorm_epsilon);
  return norm;
}

/// 1/sqrt(width of a head), times m(factor, mscale_all_dim)^2 with YaRN (bridge-config.md 1.4).
double latent_scale(const ModelConfig& config) {
  const double width = static_cast<double>(config.qk_head_dim + config.qk_pos_emb_head_dim);
  const double stretch = config.rope_type == config::MlaRopeType::kYarn
                             ? nn::yarn_scale(config.rotary_scaling_factor, config.mscale_all_dim)
                             : 1.0;
  return config.softmax_scale.value_or(stretch * stretch / std::sqrt(width));
}

}  // namespace

nn::LatentAttention declare_latent_attention(const ModelConfig& config, std::int64_t layer, const Placement& placement,
                                             const std::string& name) {
  const std::int64_t hidden = *config.hidden_size, heads = *config.num_attention_heads;
  const std::int64_t query_width = heads * (config.qk_head_dim + config.qk_pos_emb_head_dim);
  const double deviation = config.init_method_std;
  const bool bias = config.add_bias_linear;
  const auto column = [&](const char* part, std::int64_t rows, std::int64_t columns) {
    const std::string full = name + "." + part;
    return declare_column_linear(full, {{full, rows}}, columns, bias, deviation, placement.parallel);
  };
  nn::LatentAttention attention;
  if (!config.q_lora_rank) {
    attention.linear_q_proj = column("linear_q_proj", query_width, hidden);
  } else {
    attention.linear_q_down_proj =
        declare_whole_linear(name + ".linear_q_down_proj", *config.q_lora_rank, hidden, bias, deviation, placement);
    if (config.qk_layernorm)
      attention.q_layernorm = declare_latent_norm(config, name + ".q_layernorm", *config.q_lora_rank, placement);
    attention.linear_q_up_proj = column("linear_q_up_proj", query_width, *config.q_lora_rank);
  }
  attention.linear_kv_down_proj =
      declare_whole_linear(name + ".linear_kv_down_proj", config.kv_lora_rank + config.qk_pos_emb_head_dim, hidden,
                           bias, deviation, placement);
  if (config.qk_layernorm)
    attention.kv_layernorm = declare_latent_norm(config, name + ".kv_layernorm", config.kv_lora_rank, placement);
  attention.linear_kv_up_proj =
      column("linear_kv_up_proj", heads * (config.qk_head_dim + config.v_head_dim), config.kv_lora_rank);
  attention.linear_proj =
      declare_row_linear(name + ".linear_proj", hidden, heads * config.v_head_dim,
                         config.add_attention_output_bias.value_or(bias), output_deviation(config), placement);
  attention.options = attention_options(config, layer, placement, name);
  attention.options.num_kv_heads = attention.options.num_heads;
  attention.options.head_width = config.qk_head_dim + config.qk_pos_emb_head_dim;
  attention.options.value_width = config.v_head_dim;
  attention.options.scale = latent_scale(config);
  attention.content_width = config.qk_head_dim;
  attention.rotary_width = config.qk_pos_emb_head_dim;
  attention.kv_rank = config.kv_lora_rank;
  attention.recompute_up_projection = recomputes(config, "mla_up_proj");
  attention.parallel = placement.parallel;
  attention.context_parallel = placement.context_parallel;
  return attention;
}

}  // namespace pharos::model
