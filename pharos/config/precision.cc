#include "pharos/config/precision.h"

#include <algorithm>

#include "pharos/config/lifecycle.h"

namespace pharos::config {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

const Fields kBf16 = {{"bf16", "true"},
                      {"params_dtype", "bf16"},
                      {"pipeline_dtype", "bf16"},
                      {"autocast_enabled", "false"},
                      {"grad_reduce_in_fp32", "true"}};
const Fields kFp16 = {{"fp16", "true"},
                      {"params_dtype", "fp16"},
                      {"pipeline_dtype", "fp16"},
                      {"autocast_enabled", "false"},
                      {"grad_reduce_in_fp32", "false"}};

Fields operator+(const Fields& base, const Fields& more) {
  Fields fields = base;
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

std::vector<PrecisionRecipe> make_recipes() {
  std::vector<PrecisionRecipe> recipes = {
      {"fp32", {{"fp32", "true"}, {"params_dtype", "fp32"}, {"pipeline_dtype", "fp32"}}},
      {"bf16_mixed", kBf16},
      {"fp16_mixed", kFp16}};
  for (const auto& [prefix, base] : {std::pair{std::string("bf16"), kBf16}, {std::string("fp16"), kFp16}}) {
    recipes.push_back({prefix + "_with_fp8_delayed_scaling_mixed", base + Fields{{"fp8", "hybrid"},
                                                                                 {"fp8_recipe", "delayed"},
                                                                                 {"fp8_amax_history_len", "1024"},
                                                                                 {"fp8_amax_compute_algo", "max"},
                                                                                 {"fp8_param_gather", "true"}}});
    recipes.push_back({prefix + "_with_fp8_current_scaling_mixed", base + Fields{{"fp8", "hybrid"},
                                                                                 {"fp8_recipe", "tensorwise"},
                                                                                 {"first_last_layers_bf16", "true"},
                                                                                 {"num_layers_at_start_in_bf16", "1"},
                                                                                 {"num_layers_at_end_in_bf16", "1"},
                                                                                 {"fp8_param_gather", "true"}}});
    recipes.push_back(
        {prefix + "_with_fp8_subchannel_scaling_mixed", base + Fields{{"fp8", "hybrid"}, {"fp8_recipe", "blockwise"}}});
    recipes.push_back({prefix + "_with_mxfp8_mixed", base + Fields{{"fp8", "e4m3"},
                                                                   {"fp8_recipe", "mxfp8"},
                                                                   {"fp8_param_gather", "true"},
                                                                   {"reuse_grad_buf_for_mxfp8_param_ag", "true"}}});
  }
  recipes.push_back({"bf16_with_nvfp4_mixed", kBf16 + Fields{{"fp4", "e2m1"}, {"fp4_recipe", "nvfp4"}}});
  return recipes;
}

const std::vector<PrecisionRecipe>& recipes() {
  static const std::vector<PrecisionRecipe> kRecipes = make_recipes();
  return kRecipes;
}

}  // namespace

const PrecisionRecipe* find_precision_recipe(const std::string& name) {
  std::string plain = name;
  std::replace(plain.begin(), plain.end(), '-', '_');
  for (const PrecisionRecipe& recipe : recipes()) {
    if (recipe.name == plain) return &recipe;
  }
  return nullptr;
}

std::vector<std::string> precision_recipe_names() {
  std::vector<std::string> names;
  for (const PrecisionRecipe& recipe : recipes()) names.push_back(recipe.name);
  return names;
}

}  // namespace pharos::config
