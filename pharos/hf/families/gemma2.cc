// Gemma 2: norms around attention and MLP with weights stored minus one, capped logits, a window in every other layer.
#include <cmath>

#include "pharos/config/derived.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

/// The number whose inverse root is `scale`, exactly if there is one.
double scalar_of(double scale) {
  const double near = 1 / (scale * scale);
  for (const double candidate : {std::round(near), std::round(near * 1e6) / 1e6, near, std::nextafter(near, 0.0),
                                 std::nextafter(near, 2 * near)}) {
    if (1 / std::sqrt(candidate) == scale) return candidate;
  }
  return near;
}

/// Scores are divided by the root of this.
Row query_scalar() {
  return {[](Reader& reader, ModelConfig& model) {
            model.softmax_scale = 1 / std::sqrt(reader.positive("query_pre_attn_scalar", 256));
          },
          [](const ModelConfig& model, json& written) {
            if (!model.hidden_size || !model.num_attention_heads) return;
            const double width = static_cast<double>(config::kv_channels_or_default(model));
            const double scale = model.softmax_scale.value_or(1 / std::sqrt(width));
            const double scalar = scalar_of(scale);
            const bool is_whole = scalar == std::round(scalar) && scalar < 1e15;
            written["query_pre_attn_scalar"] = is_whole ? json(std::llround(scalar)) : json(scalar);
          }};
}

std::vector<NameRule> norm_names() {
  return {
      {"embedding.word_embeddings.weight", "embed_tokens.weight"},
      {"decoder.layers.{}.input_layernorm.weight", "layers.{}.input_layernorm.weight"},
      {"decoder.layers.{}.post_self_attn_layernorm.weight", "layers.{}.post_attention_layernorm.weight"},
      {"decoder.layers.{}.pre_mlp_layernorm.weight", "layers.{}.pre_feedforward_layernorm.weight"},
      {"decoder.layers.{}.post_mlp_layernorm.weight", "layers.{}.post_feedforward_layernorm.weight"},
      {"decoder.final_layernorm.weight", "norm.weight"},
      {.piece = "output_layer.weight", .tensor = "lm_head.weight", .is_head = true},
  };
}

}  // namespace

const Family& gemma2() {
  static const Family family{
      .model_type = "gemma2",
      .architectures = {"Gemma2ForCausalLM", "Gemma2Model"},
      .rows = joined(llama_like({.num_key_value_heads = 4,
                                 .head_dim = 256,
                                 .tie_word_embeddings = true,
                                 .activation_key = "hidden_activation",
                                 .activation = "gelu_pytorch_tanh"}),
                     {attention_bias(false), constant(&ModelConfig::layernorm_zero_centered_gamma, true),
                      constant(&ModelConfig::scale_embeddings_by_hidden_size, true),
                      constant(&ModelConfig::sandwich_layernorm, true), query_scalar(),
                      positive_or_null("attn_logit_softcapping", &ModelConfig::attn_logit_softcapping, 50),
                      positive_or_null("final_logit_softcapping", &ModelConfig::final_logit_softcapping, 30),
                      window_in_other_layers(4096), must_be("use_bidirectional_attention", false)}),
      .names = joined(joined(norm_names(), attention_names()), mlp_names()),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
