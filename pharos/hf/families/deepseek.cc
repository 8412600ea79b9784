#include "pharos/hf/families/deepseek.h"

#include "pharos/config/derived.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using nlohmann::json;

/// Null: queries are not compressed.
Row query_rank() {
  return {[](Reader& reader, ModelConfig& model) {
            model.q_lora_rank = 1536;
            if (reader.has("q_lora_rank")) model.q_lora_rank = reader.count("q_lora_rank", config::kMostWidth);
          },
          [](const ModelConfig& model, json& written) {
            written["q_lora_rank"] = model.q_lora_rank ? json(*model.q_lora_rank) : json();
          }};
}

/// Keys of ordinary attention that say nothing here.
Row head_geometry() {
  return {[](Reader& reader, ModelConfig& model) {
            if (model.num_query_groups != model.num_attention_heads)
              reader.report("num_key_value_heads differs from num_attention_heads");
            model.num_query_groups = model.num_attention_heads;
            model.kv_channels = std::nullopt;
            if (model.qk_pos_emb_head_dim % 2 != 0)
              reader.report("qk_rope_head_dim " + std::to_string(model.qk_pos_emb_head_dim) +
                            " is odd; rotary positions need pairs");
          },
          [](const ModelConfig& model, json& written) {
            if (model.num_attention_heads) written["num_key_value_heads"] = *model.num_attention_heads;
            written["head_dim"] = model.qk_pos_emb_head_dim;
          }};
}

Row dense_layers_in_front(std::int64_t otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            const std::int64_t first = reader.index("first_k_dense_replace", otherwise, config::kMostLayers);
            std::vector<std::int64_t> pattern;
            for (std::int64_t i = 0; i < model.num_layers.value_or(0); ++i) pattern.push_back(i >= first ? 1 : 0);
            model.moe_layer_freq = pattern;
          },
          [](const ModelConfig& model, json& written) {
            const std::int64_t layers = model.num_layers.value_or(0);
            std::int64_t first = 0;
            while (model.num_moe_experts && first < layers && !config::is_moe_layer(model, first)) ++first;
            written["first_k_dense_replace"] = first;
          }};
}

Row shared_experts() {
  return {[](Reader& reader, ModelConfig& model) {
            const auto shared = reader.required_count("n_shared_experts");
            if (shared && model.moe_ffn_hidden_size)
              model.moe_shared_expert_intermediate_size = *shared * *model.moe_ffn_hidden_size;
          },
          [](const ModelConfig& model, json& written) {
            if (!model.hidden_size) return;
            written["n_shared_experts"] =
                model.moe_shared_expert_intermediate_size.value_or(0) / config::moe_ffn_hidden_size_or_default(model);
          }};
}

Row scaling_factor(double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            model.moe_router_topk_scaling_factor = reader.positive("routed_scaling_factor", otherwise);
          },
          [](const ModelConfig& model, json& written) {
            written["routed_scaling_factor"] = model.moe_router_topk_scaling_factor.value_or(1);
          }};
}

/// Balance over each sequence, or over the batch if seq_aux is false.
Row balancing(double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            model.moe_router_load_balancing_type = {reader.flag("seq_aux", true) ? "seq_aux_loss" : "aux_loss"};
            model.moe_aux_loss_coeff = {reader.not_negative("aux_loss_alpha", otherwise)};
          },
          [](const ModelConfig& model, json& written) {
            if (model.moe_router_load_balancing_type.empty() || model.moe_aux_loss_coeff.empty()) return;
            const std::string& type = model.moe_router_load_balancing_type.front();
            if (type != "seq_aux_loss" && type != "aux_loss") return;
            written["seq_aux"] = type == "seq_aux_loss";
            written["aux_loss_alpha"] = model.moe_aux_loss_coeff.front();
          }};
}

}  // namespace

std::vector<Row> deepseek_rows(const DeepSeek& defaults) {
  const std::vector<Row> first = {constant(&ModelConfig::multi_latent_attention, true)};
  return joined(joined(first, llama_like({})),
                {
                    constant(&ModelConfig::qk_layernorm, true),
                    constant(&ModelConfig::mla_latent_layernorm_epsilon, 1e-6),  // whatever rms_norm_eps is
                    query_rank(),
                    count("kv_lora_rank", &ModelConfig::kv_lora_rank),
                    count("qk_nope_head_dim", &ModelConfig::qk_head_dim, config::kMostHeads),
                    count("qk_rope_head_dim", &ModelConfig::qk_pos_emb_head_dim, config::kMostHeads),
                    count("v_head_dim", &ModelConfig::v_head_dim, config::kMostHeads),
                    head_geometry(),
                    must_be("attention_bias", false),
                    count("n_routed_experts|num_local_experts|num_experts", &ModelConfig::num_moe_experts),
                    count("num_experts_per_tok", &ModelConfig::moe_router_topk),
                    count("moe_intermediate_size", &ModelConfig::moe_ffn_hidden_size),
                    shared_experts(),
                    dense_layers_in_front(defaults.first_k_dense_replace),
                    must_be("moe_layer_freq", 1),
                    scaling_factor(defaults.routed_scaling_factor),
                    constant(&ModelConfig::moe_router_dtype, config::RouterDType::kFloat32),
                    balancing(defaults.aux_loss_alpha),
                });
}

std::vector<NameRule> deepseek_names() {
  return joined(
      joined(joined(backbone_names(), mlp_names()), expert_names()),
      {
          {"decoder.layers.{}.self_attention.linear_q_proj.weight", "layers.{}.self_attn.q_proj.weight"},
          {"decoder.layers.{}.self_attention.linear_q_down_proj.weight", "layers.{}.self_attn.q_a_proj.weight"},
          {"decoder.layers.{}.self_attention.q_layernorm.weight", "layers.{}.self_attn.q_a_layernorm.weight"},
          {"decoder.layers.{}.self_attention.linear_q_up_proj.weight", "layers.{}.self_attn.q_b_proj.weight"},
          {"decoder.layers.{}.self_attention.linear_kv_down_proj.weight",
           "layers.{}.self_attn.kv_a_proj_with_mqa.weight"},
          {"decoder.layers.{}.self_attention.kv_layernorm.weight", "layers.{}.self_attn.kv_a_layernorm.weight"},
          {"decoder.layers.{}.self_attention.linear_kv_up_proj.weight", "layers.{}.self_attn.kv_b_proj.weight"},
          {"decoder.layers.{}.self_attention.linear_proj.weight", "layers.{}.self_attn.o_proj.weight"},
          {"decoder.layers.{}.mlp.shared_experts.gate.weight", "layers.{}.mlp.shared_experts.gate_proj.weight"},
          {"decoder.layers.{}.mlp.shared_experts.up.weight", "layers.{}.mlp.shared_experts.up_proj.weight"},
          {"decoder.layers.{}.mlp.shared_experts.linear_fc2.weight", "layers.{}.mlp.shared_experts.down_proj.weight"},
      });
}

}  // namespace pharos::hf
