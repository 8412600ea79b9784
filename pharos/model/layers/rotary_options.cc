#include "pharos/model/layers/rotary_options.h"

#include "pharos/config/derived.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using Scaling = nn::RotaryOptions::Scaling;

/// m(mscale) / m(mscale_all_dim), either of which may be unset (bridge-config.md 1.4).
double attention_factor(const ModelConfig& config, double factor, std::optional<double> scale,
                        std::optional<double> scale_all) {
  if (config.rope_attention_factor) return *config.rope_attention_factor;
  if (!scale || !scale_all) return nn::yarn_scale(factor, 1);
  return nn::yarn_scale(factor, *scale) / nn::yarn_scale(factor, *scale_all);
}

nn::RotaryOptions latent_options(const ModelConfig& config) {
  nn::RotaryOptions options;
  options.width = config.qk_pos_emb_head_dim;
  options.base = config.rotary_base;
  options.interleaved = config.mla_rotary_interleaved;
  if (config.rope_type == config::MlaRopeType::kRope) return options;
  options.scaling = Scaling::kYarn;
  options.factor = config.rotary_scaling_factor;
  options.original_max_positions = config.original_max_position_embeddings;
  options.beta_fast = config.beta_fast;
  options.beta_slow = config.beta_slow;
  options.attention_factor = attention_factor(config, options.factor, config.mscale, config.mscale_all_dim);
  return options;
}

void set_yarn(const ModelConfig& config, nn::RotaryOptions& options) {
  options.scaling = Scaling::kYarn;
  options.factor = config.yarn_rotary_scaling_factor.value_or(1);
  options.original_max_positions = config.yarn_original_max_position_embeddings.value_or(4096);
  options.beta_fast = config.yarn_beta_fast.value_or(32);
  options.beta_slow = config.yarn_beta_slow.value_or(1);
  options.rounds_to_integer = config.yarn_correction_range_round_to_int.value_or(true);
  options.attention_factor = attention_factor(config, options.factor, config.yarn_mscale, config.yarn_mscale_all_dim);
}

}  // namespace

nn::RotaryOptions rotary_options(const ModelConfig& config) {
  if (config.multi_latent_attention) return latent_options(config);
  nn::RotaryOptions options;
  const auto width = static_cast<double>(config::kv_channels_or_default(config));
  options.width = static_cast<std::int64_t>(width * config.rotary_percent) / 2 * 2;
  options.base = config.rotary_base;
  options.interleaved = config.rotary_interleaved;
  if (config.position_embedding_type == config::PositionEmbedding::kYarn) {
    set_yarn(config, options);
  } else if (config.rope_scaling) {
    options.scaling = Scaling::kLlama3;
    options.factor = config.rope_scaling_factor;
    options.low_frequency_factor = config.rope_scaling_low_freq_factor;
    options.high_frequency_factor = config.rope_scaling_high_freq_factor;
    options.original_max_positions = config.rope_scaling_original_max_position_embeddings;
  } else if (config.seq_len_interpolation_factor) {
    options.scaling = Scaling::kLinear;
    options.factor = *config.seq_len_interpolation_factor;
  }
  return options;
}

}  // namespace pharos::model
