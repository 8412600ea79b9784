// DeepSeek-V2 and V2-Lite.
#include "pharos/hf/families/deepseek.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {
namespace {

using config::ModelConfig;
using config::RouterGroupScore;
using nlohmann::json;

/// Weights are those of the softmax over all experts, not divided by their sum: transformers does not look at
/// norm_topk_prob. With group_limited_greedy a group is as good as its best expert.
Row routing() {
  return {[](Reader& reader, ModelConfig& model) {
            model.moe_router_score_function = config::RouterScoreFunction::kSoftmax;
            model.moe_router_pre_softmax = true;
            model.moe_router_norm_topk_prob = false;
            const std::string method = reader.text("topk_method", "greedy");
            if (method == "group_limited_greedy") {
              model.moe_router_num_groups = reader.required_count("n_group");
              model.moe_router_group_topk = reader.required_count("topk_group");
              model.moe_router_group_score = RouterGroupScore::kMaximum;
            } else if (method != "greedy") {
              reader.report("topk_method = " + method + " is not supported (greedy, group_limited_greedy)");
            }
          },
          [](const ModelConfig& model, json& written) {
            written["topk_method"] = model.moe_router_num_groups ? "group_limited_greedy" : "greedy";
            written["n_group"] = model.moe_router_num_groups.value_or(1);
            written["topk_group"] = model.moe_router_group_topk.value_or(1);
            written["norm_topk_prob"] = false;
          }};
}

}  // namespace

const Family& deepseek_v2() {
  static const Family family{
      .model_type = "deepseek_v2",
      .architectures = {"DeepseekV2ForCausalLM", "DeepseekV2Model"},
      .rows = joined(deepseek_rows({}), {must_be("mlp_bias", false), must_be("scoring_func", "softmax"), routing(),
                                         constant(&ModelConfig::mla_rotary_interleaved, true)}),
      .names = deepseek_names(),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

}  // namespace pharos::hf
