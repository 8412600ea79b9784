// The example of docs/models.md: a dense family takes one table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/json.h"
#include "pharos/hf/families/parts/names.h"
#include "pharos/hf/families/parts/rows.h"
#include "pharos/hf/hf_names.h"
#include "pharos/hf/test_support.h"
#include "pharos/model/stages.h"
#include "pharos/model/transformer.h"

namespace pharos::hf {
namespace {

using ::testing::IsSupersetOf;

const Family& arcee() {
  static const Family family{
      .model_type = "arcee",
      .architectures = {"ArceeForCausalLM", "ArceeModel"},
      .rows =
          joined(llama_like({.rms_norm_eps = 1e-5, .activation = "relu2"}),
                 {constant(&config::ModelConfig::gated_linear_unit, false), attention_bias(false), mlp_bias(false)}),
      .names = joined(joined(backbone_names(), attention_names()),
                      {
                          {"decoder.layers.{}.mlp.linear_fc1.weight", "layers.{}.mlp.up_proj.weight"},
                          {"decoder.layers.{}.mlp.linear_fc1.bias", "layers.{}.mlp.up_proj.bias"},
                          {"decoder.layers.{}.mlp.linear_fc2.weight", "layers.{}.mlp.down_proj.weight"},
                          {"decoder.layers.{}.mlp.linear_fc2.bias", "layers.{}.mlp.down_proj.bias"},
                      }),
      .ignorable = inverse_frequencies(),
  };
  return family;
}

TEST(NewFamily, OneTableIsAllItTakes) {
  config::ModelConfig model =
      parse_hf_config(base::read_json_file(test::fixture("llama") / "config.json"), "config.json").model;
  model.gated_linear_unit = false;
  model.activation_func = config::Activation::kSquaredRelu;
  const HfModel hf = express(model, &arcee());  // written and read back without a loss
  const nlohmann::json written = to_hf_config(hf);
  EXPECT_EQ(written["architectures"][0], "ArceeForCausalLM");
  EXPECT_EQ(written["hidden_act"], "relu2");
  const comm::Mesh mesh(1, {});
  model::Transformer transformer(model, model::whole_model(model), mesh, 0);
  std::vector<const tensor::Piece*> pieces;
  for (const auto* parameter : transformer.parameters()) {
    for (const auto& piece : parameter->pieces) pieces.push_back(&piece);
  }
  std::vector<std::string> names;
  for (const StoredTensor& stored : stored_tensors(name_table(hf), pieces)) names.push_back(stored.name);
  EXPECT_THAT(names, IsSupersetOf({"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight",
                                   "model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight"}));
  EXPECT_EQ(names.size(), 3u + 8u * static_cast<std::size_t>(*model.num_layers));
}

}  // namespace
}  // namespace pharos::hf
