// GPT-2: learned positions, LayerNorm, biases, matrices stored [in, out].
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

Row feed_forward_width() {
  return {[](Reader& reader, ModelConfig& model) {
            model.ffn_hidden_size = reader.count("n_inner", 8 * config::kMostWidth);
            if (!model.ffn_hidden_size && model.hidden_size) model.ffn_hidden_size = 4 * *model.hidden_size;
          },
          [](const ModelConfig& model, json& written) {
            if (model.ffn_hidden_size) written["n_inner"] = *model.ffn_hidden_size;
          }};
}

Row hidden_dropout() {
  return {[](Reader& reader, ModelConfig& model) {
            model.hidden_dropout = reader.dropout("resid_pdrop", 0.1);
            if (reader.dropout("embd_pdrop", 0.1) != model.hidden_dropout)
              reader.report("embd_pdrop and resid_pdrop differ; Pharos has one hidden_dropout for both");
          },
          [](const ModelConfig& model, json& written) {
            written["resid_pdrop"] = written["embd_pdrop"] = model.hidden_dropout;
          }};
}

std::vector<NameRule> names() {
  return {
      {"embedding.word_embeddings.weight", "wte.weight"},
      {"embedding.position_embeddings.weight", "wpe.weight"},
      {"decoder.layers.{}.input_layernorm.weight", "h.{}.ln_1.weight"},
      {"decoder.layers.{}.input_layernorm.bias", "h.{}.ln_1.bias"},
      {"decoder.layers.{}.self_attention.q.weight", "h.{}.attn.c_attn.weight", true, 0, 3},
      {"decoder.layers.{}.self_attention.k.weight", "h.{}.attn.c_attn.weight", true, 1, 3},
      {"decoder.layers.{}.self_attention.v.weight", "h.{}.attn.c_attn.weight", true, 2, 3},
      {"decoder.layers.{}.self_attention.q.bias", "h.{}.attn.c_attn.bias", false, 0, 3},
      {"decoder.layers.{}.self_attention.k.bias", "h.{}.attn.c_attn.bias", false, 1, 3},
      {"decoder.layers.{}.self_attention.v.bias", "h.{}.attn.c_attn.bias", false, 2, 3},
      {"decoder.layers.{}.self_attention.linear_proj.weight", "h.{}.attn.c_proj.weight", true},
      {"decoder.layers.{}.self_attention.linear_proj.bias", "h.{}.attn.c_proj.bias"},
      {"decoder.layers.{}.pre_mlp_layernorm.weight", "h.{}.ln_2.weight"},
      {"decoder.layers.{}.pre_mlp_layernorm.bias", "h.{}.ln_2.bias"},
      {"decoder.layers.{}.mlp.linear_fc1.weight", "h.{}.mlp.c_fc.weight", true},
      {"decoder.layers.{}.mlp.linear_fc1.bias", "h.{}.mlp.c_fc.bias"},
      {"decoder.layers.{}.mlp.linear_fc2.weight", "h.{}.mlp.c_proj.weight", true},
      {"decoder.layers.{}.mlp.linear_fc2.bias", "h.{}.mlp.c_proj.bias"},
      {"decoder.final_layernorm.weight", "ln_f.weight"},
      {"decoder.final_layernorm.bias", "ln_f.bias"},
      {.piece = "output_layer.weight", .tensor = "lm_head.weight", .is_head = true},
  };
}

}  // namespace

const Family& gpt2() {
  static const Family family{
      .model_type = "gpt2",
      .architectures = {"GPT2LMHeadModel", "GPT2Model"},
      .rows =
          {
              count("n_layer", &ModelConfig::num_layers, config::kMostLayers),
              count("n_embd", &ModelConfig::hidden_size),
              count("n_head", &ModelConfig::num_attention_heads, config::kMostHeads),
              count("n_positions|n_ctx", &ModelConfig::seq_length, config::kMostVocabulary),
              feed_forward_width(),
              positive("layer_norm_epsilon", &ModelConfig::layernorm_epsilon, 1e-5),
              constant(&ModelConfig::normalization, config::Normalization::kLayerNorm),
              constant(&ModelConfig::position_embedding_type, config::PositionEmbedding::kLearnedAbsolute),
              constant(&ModelConfig::add_bias_linear, true),
              constant(&ModelConfig::gated_linear_unit, false),
              activation("activation_function", "gelu_new"),
              dropout("attn_pdrop", &ModelConfig::attention_dropout, 0.1),
              hidden_dropout(),
              flag("tie_word_embeddings", &ModelConfig::share_embeddings_and_output_weights, true),
              must_be("scale_attn_weights", true),
              must_be("scale_attn_by_inverse_layer_idx", false),
              must_be("add_cross_attention", false),
          },
      .prefix = "transformer.",
      .names = names(),
      .ignorable = {"h.{}.attn.bias", "h.{}.attn.masked_bias"},
  };
  return family;
}

}  // namespace pharos::hf
