#include "pharos/optim/names/name_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"
#include "pharos/optim/optimizer.h"
#include "pharos/optim/test_parameters.h"

namespace pharos::optim {
namespace {

using ::testing::HasSubstr;

tensor::Parameter parameter_of(const std::vector<std::string>& pieces) {
  tensor::Parameter parameter;
  parameter.name = pieces.front();
  for (const std::string& piece : pieces) parameter.pieces.push_back({piece, {2}, {}, {}});
  return parameter;
}

template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(NameRules, APatternThatFitsNothingIsAnErrorWithNearNames) {
  const std::set<std::string> pieces{"decoder.layers.0.mlp.gate.weight", "decoder.layers.0.mlp.up.weight",
                                     "embedding.word_embeddings.weight", "output_layer.weight"};
  EXPECT_NO_THROW(check_patterns("optimizer.freeze", "", {"embedding.*", "*.up.*", "output_layer.weight"}, pieces));
  EXPECT_THAT(error_of([&] {
                check_patterns("optimizer.freeze", "here", {"*", "output_layers.weight"}, pieces);
              }),
              ::testing::AllOf(HasSubstr("'output_layers.weight', which fits no weight"), HasSubstr("here"),
                               HasSubstr("for example output_layer.weight")));
  EXPECT_THAT(error_of([&] { check_patterns("optimizer.lr_scales", "", {"decoder.layers.7.*"}, pieces); }),
              HasSubstr("for example decoder.layers.0.mlp.gate.weight, decoder.layers.0.mlp.up.weight, embedding"));
}

TEST(NameRules, FrozenWeightsAreNotTrainable) {
  tensor::Parameter words = parameter_of({"embedding.words"}), qkv = parameter_of({"a.q", "a.k", "a.v"});
  freeze({&words, &qkv}, {"nothing", "a.*"}, "");
  EXPECT_TRUE(words.trainable);
  EXPECT_FALSE(qkv.trainable);
  freeze({&words}, {"*words"}, "");
  EXPECT_FALSE(words.trainable);
  EXPECT_THAT(error_of([&] { freeze({&qkv}, {"*.k"}, "here"); }),
              ::testing::AllOf(HasSubstr("treats 'a.k' unlike 'a.q'"), HasSubstr("a.q, a.k, a.v")));
}

TEST(NameRules, TheLastScaleThatFitsDecides) {
  const auto scales = config::parse_lr_scales({"*=0.5", "a.*=2", "a.x=0"});
  EXPECT_EQ(learning_rate_scale(parameter_of({"b"}), scales), 0.5);
  EXPECT_EQ(learning_rate_scale(parameter_of({"a.x"}), scales), 0);
  EXPECT_EQ(learning_rate_scale(parameter_of({"a.y", "a.z"}), scales), 2);
  EXPECT_EQ(learning_rate_scale(parameter_of({"b"}), {}), 1);
  EXPECT_THAT(error_of([&] {
                learning_rate_scale(parameter_of({"a.x", "a.y"}), scales);
              }),
              HasSubstr("optimizer.lr_scales treats 'a.x' unlike 'a.y'"));
}

// weight_0 with its learning rate times 0.25, weight_1 (which does not decay) times 0, weight_2 as it is: each like an
// optimizer whose only learning rate that is. A factor of 0 stops the decay too.
TEST(NameRules, EachWeightIsUpdatedWithItsLearningRate) {
  const std::vector<std::vector<std::int64_t>> shapes{{5, 3}, {7}, {2, 2}};
  for (const auto kind : {OptimizerOptions::Kind::kAdamW, OptimizerOptions::Kind::kSgd}) {
    const auto train = [&](const std::vector<std::string>& scales, double learning_rate) {
      TestParameters parameters(shapes);
      for (auto* parameter : parameters.all()) parameter->pieces = {{parameter->name, {}, {}, {}}};
      GradientBuffer buffer(parameters.all());
      OptimizerOptions options;
      options.kind = kind;
      options.lr_scales = config::parse_lr_scales(scales);
      Optimizer optimizer(buffer, options);
      for (int step = 0; step < 3; ++step) {
        parameters.fill_gradients(step, 1);
        EXPECT_TRUE(optimizer.step(learning_rate, 0.1).update_successful);
      }
      return parameters.snapshot();
    };
    const auto scaled = train({"*_0=0.25", "*_1=0"}, 1e-2);
    EXPECT_TRUE(at::equal(scaled[0], train({}, 0.25e-2)[0]));
    EXPECT_TRUE(at::equal(scaled[1], TestParameters(shapes)[1].data));
    EXPECT_TRUE(at::equal(scaled[2], train({}, 1e-2)[2]));
    EXPECT_TRUE(at::equal(train({"*=0"}, 1e-2)[0], TestParameters(shapes)[0].data));
  }
}

}  // namespace
}  // namespace pharos::optim
