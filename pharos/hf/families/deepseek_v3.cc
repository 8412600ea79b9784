// DeepSeek-V3 and what is built like it: Moonlight, Kimi-K2.
#include "pharos/hf/families/deepseek.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using config::RouterGroupScore;
using nlohmann::json;

/// Sigmoid scores; a bias takes part in the choice alone; a group is as good as its two best experts together.
Row routing() {
  return {[](Reader& reader, ModelConfig& model) {
            model.moe_router_score_function = config::RouterScoreFunction::kSigmoid;
            model.moe_router_enable_expert_bias = true;
            model.moe_router_norm_topk_prob = reader.flag("norm_topk_prob", true);
            const auto groups = reader.has("n_group") ? reader.count("n_group") : 8;
            const auto chosen = reader.has("topk_group") ? reader.count("topk_group") : 4;
            if (groups.value_or(1) == 1) return;  // one group is no limit
            model.moe_router_num_groups = groups;
            model.moe_router_group_topk = chosen.value_or(1);
            model.moe_router_group_score = RouterGroupScore::kSumOfTwo;
          },
          [](const ModelConfig& model, json& written) {
            written["n_group"] = model.moe_router_num_groups.value_or(1);
            written["topk_group"] = model.moe_router_group_topk.value_or(1);
            written["norm_topk_prob"] = model.moe_router_norm_topk_prob.value_or(model.moe_router_topk > 1);
          }};
}

/// Absent: none. transformers builds none whatever the key says.
Row prediction_layers() {
  return {[](Reader& reader, ModelConfig& model) {
            const std::int64_t layers = reader.index("num_nextn_predict_layers|num_mtp_layers", 0, 1000);
            if (layers > 0) model.mtp_num_layers = layers;
          },
          [](const ModelConfig& model, json& written) {
            written["num_nextn_predict_layers"] = model.mtp_num_layers.value_or(0);
          }};
}

std::vector<NameRule> names() {
  return joined(deepseek_names(), {
                                      {.piece = "decoder.layers.{}.mlp.router.expert_bias",
                                       .tensor = "layers.{}.mlp.gate.e_score_correction_bias",
                                       .is_fp32 = true},
                                      {"mtp.layers.{}.enorm.weight", "layers.{}.enorm.weight"},
                                      {"mtp.layers.{}.hnorm.weight", "layers.{}.hnorm.weight"},
                                      {"mtp.layers.{}.eh_proj.weight", "layers.{}.eh_proj.weight"},
                                      {"mtp.layers.{}.final_layernorm.weight", "layers.{}.shared_head.norm.weight"},
                                  });
}

}  // namespace

const Family& deepseek_v3() {
  static const Family family{
      .model_type = "deepseek_v3",
      .architectures = {"DeepseekV3ForCausalLM", "DeepseekV3Model"},
      .other_types = {"kimi_k2"},
      .rows = joined(deepseek_rows({.first_k_dense_replace = 3, .routed_scaling_factor = 2.5, .aux_loss_alpha = 1e-4}),
                     {must_be("scoring_func", "sigmoid"), must_be("topk_method", "noaux_tc"), routing(),
                      flag("rope_interleave", &ModelConfig::mla_rotary_interleaved, true), prediction_layers()}),
      .names = names(),
      .copies = {{"embedding.word_embeddings.weight", "layers.{}.embed_tokens.weight"},
                 {"output_layer.weight", "layers.{}.shared_head.head.weight"}},
      .ignorable = inverse_frequencies(),
      .has_prediction_layers = true,
  };
  return family;
}

}  // namespace pharos::hf
