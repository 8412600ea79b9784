// A model cut into stages, run one after the other on one rank or with the ends on two: the numbers of the whole model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pharos/model/model_testing.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using tensor::Parameter;
using testing::gpt2_like;
using testing::llama_like;

constexpr std::int64_t kTokens = 10;

nn::ForwardContext context() {
  nn::ForwardContext context;
  context.positions = at::arange(kTokens, at::kLong);
  context.training = true;
  context.seed = 9;
  context.step = 4;
  return context;
}

/// Gradients by name, those of copies added, and the losses.
struct Result {
  std::map<std::string, at::Tensor> gradients;
  at::Tensor losses;
};

/// Runs `stages` in their order, each on the detached output of the one before, and back.
Result run(const std::vector<Transformer*>& stages) {
  at::manual_seed(17);
  const at::Tensor tokens = at::randint(61, {2, kTokens}, at::kLong), labels = at::randint(61, {2, kTokens}, at::kLong);
  for (Transformer* stage : stages) {
    for (Parameter* parameter : stage->parameters()) parameter->main_grad = at::zeros(parameter->data.sizes());
  }
  std::vector<at::Tensor> inputs, outputs;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    inputs.push_back(i == 0 ? tokens : outputs.back().detach().requires_grad_());
    outputs.push_back(stages[i]->hidden_states(inputs.back(), context()));
  }
  Result result;
  const at::Tensor losses = stages.back()->token_losses(outputs.back(), labels);
  result.losses = losses.detach();
  torch::autograd::backward({losses.sum()}, {});
  for (std::size_t i = stages.size() - 1; i-- > 0;) torch::autograd::backward({outputs[i]}, {inputs[i + 1].grad()});
  for (Transformer* stage : stages) {
    for (Parameter* parameter : stage->parameters()) {
      at::Tensor& sum = result.gradients[parameter->name];
      sum = sum.defined() ? sum + parameter->main_grad : parameter->main_grad;
    }
  }
  return result;
}

class ModelStages : public ::testing::TestWithParam<const char*> {};

// Embedding and output layer are stages of their own; where they are tied, the output layer has a copy, or with
// `shared` the words of the embedding's stage. fp32 sums in another order: 1e-5 of the largest.
TEST_P(ModelStages, EqualTheWholeModel) {
  ModelConfig config = GetParam() == std::string("Llama") ? llama_like() : gpt2_like();
  config.hidden_dropout = config.attention_dropout = 0.1;
  const bool is_tied = config.share_embeddings_and_output_weights;
  testing::Model whole(config);
  const Result expected = run({&whole.transformer});
  for (const bool shared : {false, true}) {
    std::vector<std::unique_ptr<Transformer>> stages;
    std::vector<Transformer*> pointers;
    Stage cuts[] = {{0, 0, true, false}, {0, 2, false, false}, {2, 1, false, false}, {3, 0, false, true}};
    for (Stage& stage : cuts) {
      if (stage.output && shared) stage.tied_words = stages.front()->parameters().front();
      stages.push_back(std::make_unique<Transformer>(config, stage, comm::Mesh(1, {}), 0));
      pointers.push_back(stages.back().get());
    }
    for (Transformer* stage : pointers) stage->materialize(at::kCPU, 5);
    const Parameter &words = *pointers.front()->parameters().front(), &last = *pointers.back()->parameters().back();
    EXPECT_EQ(words.num_uses, is_tied && shared ? 2 : 1);
    EXPECT_EQ(words.tie, is_tied && !shared ? Parameter::Tie::kOriginal : Parameter::Tie::kNone);
    EXPECT_EQ(last.tie, is_tied && !shared ? Parameter::Tie::kCopy : Parameter::Tie::kNone);
    if (is_tied && !shared) {
      EXPECT_TRUE(at::equal(words.data, last.data));
    }
    const Result actual = run(pointers);
    EXPECT_LT((actual.losses - expected.losses).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(actual.gradients.size(), expected.gradients.size());
    for (const auto& [name, gradient] : expected.gradients) {
      const double largest = gradient.abs().max().item<double>();
      EXPECT_GT(largest, 0) << name;
      EXPECT_LT((actual.gradients.at(name) - gradient).abs().max().item<double>() / largest, 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelStages, ::testing::Values("Llama", "Gpt2Tied"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace pharos::model
