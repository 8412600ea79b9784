#include <algorithm>

#include "pharos/config/derived.h"
#include "pharos/hf/families/parts/rows.h"

namespace pharos::hf {

using config::ModelConfig;
using nlohmann::json;

Row softmax_over_chosen() {
  return {[](Reader&, ModelConfig& model) {
    model.moe_router_score_function = config::RouterScoreFunction::kSoftmax;
    model.moe_router_pre_softmax = false;
  }};
}

Row balancing_loss(const char* key, double otherwise) {
  return {[=](Reader& reader, ModelConfig& model) {
            model.moe_router_load_balancing_type = {"aux_loss"};
            model.moe_aux_loss_coeff = {reader.not_negative(key, otherwise)};
          },
          [=](const ModelConfig& model, json& written) {
            const auto& types = model.moe_router_load_balancing_type;
            const auto index =
                static_cast<std::size_t>(std::find(types.begin(), types.end(), "aux_loss") - types.begin());
            const auto& coefficients = model.moe_aux_loss_coeff;
            if (index == types.size() || coefficients.empty()) return;
            written[key] = coefficients[std::min(index, coefficients.size() - 1)];
          }};
}

Row experts_in_every_layer() {
  return {[](Reader&, ModelConfig& model) {
            model.moe_layer_freq = std::int64_t{1};
            model.moe_ffn_hidden_size = model.ffn_hidden_size;
          },
          [](const ModelConfig& model, json& written) {
            if (model.hidden_size) written["intermediate_size"] = config::moe_ffn_hidden_size_or_default(model);
          }};
}

}  // namespace pharos::hf
