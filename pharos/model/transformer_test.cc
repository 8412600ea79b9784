// What holds for a whole model: parameters, gradients, first loss, masks, dropout, recomputation.
#include "pharos/model/transformer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "pharos/model/model_testing.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using ::testing::ElementsAreArray;
using testing::gpt2_like;
using testing::grouped_with_qk_norm;
using testing::llama_like;
using testing::Model;

struct Batch {
  at::Tensor tokens, labels;
};

Batch make_batch(std::int64_t batch, std::int64_t tokens, std::int64_t vocab_size = 61) {
  at::manual_seed(17);
  return {at::randint(vocab_size, {batch, tokens}, at::kLong), at::randint(vocab_size, {batch, tokens}, at::kLong)};
}

nn::ForwardContext evaluation(std::int64_t tokens) {
  nn::ForwardContext context;
  context.positions = at::arange(tokens, at::kLong);
  return context;
}

nn::ForwardContext training(std::int64_t tokens) {
  nn::ForwardContext context = evaluation(tokens);
  context.training = true;
  context.seed = 9;
  context.step = 4;
  return context;
}

at::Tensor token_losses(const Model& model, const Batch& batch, const nn::ForwardContext& context) {
  return model.transformer.token_losses(model.transformer.hidden_states(batch.tokens, context), batch.labels);
}

at::Tensor logits(const Model& model, const at::Tensor& tokens, const nn::ForwardContext& context) {
  const at::NoGradGuard no_grad;
  return model.transformer.logits(model.transformer.hidden_states(tokens, context));
}

/// Sum of the token losses without gradients.
double total_loss(const Model& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  return token_losses(model, batch, evaluation(batch.tokens.size(1))).to(at::kDouble).sum().item<double>();
}

/// Adds the gradient of the summed loss to the main gradients.
void backward(const Model& model, const Batch& batch, const nn::ForwardContext& context) {
  torch::autograd::backward({token_losses(model, batch, context).sum()}, {});
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

using NamedShape = std::pair<std::string, std::vector<std::int64_t>>;

std::vector<NamedShape> parameter_shapes(const ModelConfig& config) {
  Transformer model(config, whole_model(config), comm::Mesh(1, {}), 0);
  std::vector<NamedShape> shapes;
  for (const auto* parameter : model.parameters()) {
    EXPECT_TRUE(parameter->data.is_meta()) << parameter->name;
    shapes.emplace_back(parameter->name, parameter->data.sizes().vec());
  }
  return shapes;
}

std::vector<std::string> piece_names(const ModelConfig& config) {
  Transformer model(config, whole_model(config), comm::Mesh(1, {}), 0);
  std::vector<std::string> names;
  for (const auto* parameter : model.parameters()) {
    for (const auto& piece : parameter->pieces) names.push_back(piece.name);
  }
  return names;
}

TEST(Transformer, DeclaresTheParametersOfALlamaWithGroupedQueries) {
  ModelConfig config = grouped_with_qk_norm();
  config.num_layers = 1;
  config.add_qkv_bias = false;
  const std::string layer = "decoder.layers.0.";
  EXPECT_THAT(parameter_shapes(config),
              ElementsAreArray(std::vector<NamedShape>{{"embedding.word_embeddings.weight", {61, 32}},
                                                       {layer + "input_layernorm.weight", {32}},
                                                       {layer + "self_attention.qkv.weight", {(4 + 2 + 2) * 12, 32}},
                                                       {layer + "self_attention.q_layernorm.weight", {12}},
                                                       {layer + "self_attention.k_layernorm.weight", {12}},
                                                       {layer + "self_attention.linear_proj.weight", {32, 48}},
                                                       {layer + "pre_mlp_layernorm.weight", {32}},
                                                       {layer + "mlp.linear_fc1.weight", {96, 32}},
                                                       {layer + "mlp.linear_fc2.weight", {32, 48}},
                                                       {"decoder.final_layernorm.weight", {32}},
                                                       {"output_layer.weight", {61, 32}}}));
  EXPECT_THAT(piece_names(config),
              ElementsAreArray(
                  {"embedding.word_embeddings.weight", "decoder.layers.0.input_layernorm.weight",
                   "decoder.layers.0.self_attention.q.weight", "decoder.layers.0.self_attention.k.weight",
                   "decoder.layers.0.self_attention.v.weight", "decoder.layers.0.self_attention.q_layernorm.weight",
                   "decoder.layers.0.self_attention.k_layernorm.weight",
                   "decoder.layers.0.self_attention.linear_proj.weight", "decoder.layers.0.pre_mlp_layernorm.weight",
                   "decoder.layers.0.mlp.gate.weight", "decoder.layers.0.mlp.up.weight",
                   "decoder.layers.0.mlp.linear_fc2.weight", "decoder.final_layernorm.weight", "output_layer.weight"}));
}

TEST(Transformer, DeclaresTheParametersOfAGpt2) {
  ModelConfig config = gpt2_like();
  config.num_layers = 1;
  const std::string layer = "decoder.layers.0.";
  EXPECT_THAT(parameter_shapes(config),
              ElementsAreArray(std::vector<NamedShape>{{"embedding.word_embeddings.weight", {128, 32}},
                                                       {"embedding.position_embeddings.weight", {24, 32}},
                                                       {layer + "input_layernorm.weight", {32}},
                                                       {layer + "input_layernorm.bias", {32}},
                                                       {layer + "self_attention.qkv.weight", {96, 32}},
                                                       {layer + "self_attention.qkv.bias", {96}},
                                                       {layer + "self_attention.linear_proj.weight", {32, 32}},
                                                       {layer + "self_attention.linear_proj.bias", {32}},
                                                       {layer + "pre_mlp_layernorm.weight", {32}},
                                                       {layer + "pre_mlp_layernorm.bias", {32}},
                                                       {layer + "mlp.linear_fc1.weight", {48, 32}},
                                                       {layer + "mlp.linear_fc1.bias", {48}},
                                                       {layer + "mlp.linear_fc2.weight", {32, 48}},
                                                       {layer + "mlp.linear_fc2.bias", {32}},
                                                       {"decoder.final_layernorm.weight", {32}},
                                                       {"decoder.final_layernorm.bias", {32}}}));
}

struct ModelCase {
  const char* name;
  ModelConfig (*make)();
};

struct EveryFamily : ::testing::TestWithParam<ModelCase> {};

INSTANTIATE_TEST_SUITE_P(Models, EveryFamily,
                         ::testing::Values(ModelCase{"LlamaLike", llama_like},
                                           ModelCase{"GroupedWithQkNorm", grouped_with_qk_norm},
                                           ModelCase{"Gpt2Like", gpt2_like}),
                         [](const auto& info) { return std::string(info.param.name); });

/// (L(w + e d) - L(w - e d)) / 2e, with d given per parameter (undefined: zero).
double slope(Model& model, const Batch& batch, const std::vector<at::Tensor>& direction, double step) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.transformer.parameters();
  std::vector<at::Tensor> kept;
  for (auto* parameter : parameters) kept.push_back(parameter->data.detach().clone());
  const auto loss_at = [&](double distance_along) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor data = parameters[i]->data.detach();
      data.copy_(kept[i]);
      if (direction[i].defined()) data.add_(direction[i], distance_along);
    }
    return total_loss(model, batch);
  };
  const double above = loss_at(step), below = loss_at(-step);
  loss_at(0);
  return (above - below) / (2 * step);
}

// d L(w + e d)/de = <main_grad, d>, for the gradient's own direction in each parameter and for random directions of
// all.
TEST_P(EveryFamily, GradientsAgreeWithFiniteDifferences) {
  ModelConfig config = GetParam().make();
  config.init_method_std = 0.15;
  Model model(config);
  const Batch batch = make_batch(2, 8);
  backward(model, batch, evaluation(8));
  const auto parameters = model.transformer.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double norm = parameters[i]->main_grad.norm().item<double>();
    ASSERT_GT(norm, 1e-3) << parameters[i]->name;
    std::vector<at::Tensor> direction(parameters.size());
    direction[i] = parameters[i]->main_grad / norm;
    EXPECT_NEAR(slope(model, batch, direction, 0.01) / norm, 1, 0.01) << parameters[i]->name;
  }
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<at::Tensor> direction;
    double expected = 0;
    for (auto* parameter : parameters) {  // half of the gradient keeps the slope well above rounding
      const at::Tensor& grad = parameter->main_grad;
      direction.push_back(at::randn_like(grad) / std::sqrt(static_cast<double>(grad.numel())) +
                          0.5 * grad / grad.norm());
      expected += (grad * direction.back()).sum().item<double>();
    }
    EXPECT_NEAR(slope(model, batch, direction, 0.003) / expected, 1, 0.01);
  }
}

TEST_P(EveryFamily, FirstLossIsThatOfAUniformGuess) {
  ModelConfig config = GetParam().make();
  config.init_method_std = 0.02;
  const Model model(config);
  EXPECT_NEAR(total_loss(model, make_batch(8, 24)) / (8 * 24), std::log(61.0), 0.03);
}

TEST_P(EveryFamily, ALaterTokenDoesNotChangeEarlierLogits) {
  const Model model(GetParam().make());
  const at::Tensor tokens = make_batch(2, 12).tokens;
  const at::Tensor before = logits(model, tokens, evaluation(12));
  at::Tensor changed = tokens.clone();
  changed.select(1, 7).add_(1).remainder_(61);
  const at::Tensor after = logits(model, changed, evaluation(12));
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 7), after.narrow(1, 0, 7)));
  for (std::int64_t token = 7; token < 12; ++token)
    EXPECT_GT(distance(after.select(1, token), before.select(1, token)), 1e-4) << token;
}

// Two documents in one sequence with restarted positions and a segment each == each of them alone.
TEST_P(EveryFamily, SegmentsAndPositionsSeparateDocuments) {
  const Model model(GetParam().make());
  const at::Tensor tokens = make_batch(1, 12).tokens;
  nn::ForwardContext context;
  context.positions = at::cat({at::arange(5, at::kLong), at::arange(7, at::kLong)}).unsqueeze(0);
  context.segments = (at::arange(12, at::kLong) >= 5).to(at::kLong).unsqueeze(0);
  const at::Tensor together = logits(model, tokens, context);
  const at::Tensor first = logits(model, tokens.narrow(1, 0, 5), evaluation(5));
  const at::Tensor second = logits(model, tokens.narrow(1, 5, 7), evaluation(7));
  EXPECT_LT(distance(together, at::cat({first, second}, 1)), 1e-5);
  EXPECT_GT(distance(logits(model, tokens, evaluation(12)), together), 1e-2) << "the mask changes nothing";
}

struct RecomputeCase {
  const char* name;
  config::RecomputeGranularity granularity;
  std::optional<config::RecomputeMethod> method;
  std::optional<std::int64_t> num_layers;
};

const RecomputeCase kRecomputeCases[] = {
    {"uniform, chunks of 1", config::RecomputeGranularity::kFull, config::RecomputeMethod::kUniform, 1},
    {"uniform, chunks of 2", config::RecomputeGranularity::kFull, config::RecomputeMethod::kUniform, 2},
    {"block, 2 of 3", config::RecomputeGranularity::kFull, config::RecomputeMethod::kBlock, 2},
    {"selective", config::RecomputeGranularity::kSelective, std::nullopt, std::nullopt},
};

// Same main_grad to the last bit, with and without dropout.
TEST_P(EveryFamily, RecomputationGivesTheSameGradients) {
  for (const double dropout : {0.0, 0.3}) {
    ModelConfig config = GetParam().make();
    config.hidden_dropout = config.attention_dropout = dropout;
    const Batch batch = make_batch(2, 12);
    const Model kept(config);
    backward(kept, batch, training(12));
    for (const RecomputeCase& c : kRecomputeCases) {
      SCOPED_TRACE(c.name);
      ModelConfig changed = config;
      changed.recompute_granularity = c.granularity;
      changed.recompute_method = c.method;
      changed.recompute_num_layers = c.num_layers;
      Model recomputed(changed);
      backward(recomputed, batch, training(12));
      for (const auto& [name, parameter] : kept.by_name) {
        EXPECT_GT(parameter->main_grad.abs().sum().item<double>(), 0) << name;
        EXPECT_TRUE(at::equal(recomputed[name].main_grad, parameter->main_grad)) << name << ", dropout " << dropout;
      }
    }
  }
}

// Losses and gradients of one batch of 4 == those of two batches of 2 that know their place.
TEST_P(EveryFamily, DropoutDoesNotDependOnTheCutIntoMicrobatches) {
  ModelConfig config = GetParam().make();
  config.hidden_dropout = config.attention_dropout = 0.2;
  const Batch batch = make_batch(4, 10);
  Model whole(config), halves(config);
  const auto losses = [&](const Model& model, std::int64_t first, std::int64_t count, std::int64_t place) {
    nn::ForwardContext context = training(10);
    context.first_sample = place;
    const at::Tensor value =
        token_losses(model, {batch.tokens.narrow(0, first, count), batch.labels.narrow(0, first, count)}, context);
    torch::autograd::backward({value.sum()}, {});
    return value.detach();
  };
  const at::Tensor all = losses(whole, 0, 4, 0);
  const at::Tensor cut = at::cat({losses(halves, 0, 2, 0), losses(halves, 2, 2, 2)});
  EXPECT_LT(distance(cut, all), 1e-5);
  for (const auto& [name, parameter] : whole.by_name)
    EXPECT_LT(distance(halves[name].main_grad, parameter->main_grad), 1e-4) << name;
  EXPECT_GT(distance(losses(halves, 2, 2, 0), all.narrow(0, 2, 2)), 1e-3) << "the place in the batch has no effect";
}

TEST(Transformer, DropoutChangesWithTheStepAndIsOffOutsideTraining) {
  ModelConfig config = llama_like();
  config.hidden_dropout = config.attention_dropout = 0.2;
  const Model model(config), plain(llama_like());
  const at::Tensor tokens = make_batch(2, 10).tokens;
  nn::ForwardContext later = training(10);
  later.step += 1;
  const at::Tensor value = logits(model, tokens, training(10));
  EXPECT_TRUE(at::equal(logits(model, tokens, training(10)), value));
  EXPECT_GT(distance(logits(model, tokens, later), value), 1e-2);
  EXPECT_TRUE(at::equal(logits(model, tokens, evaluation(10)), logits(plain, tokens, evaluation(10))));
}

// d/dW of the tied table == (d/dE + d/dO) of an untied model with E = O = W.
TEST(Transformer, TiedTableReceivesTheGradientsOfBothEnds) {
  ModelConfig config = gpt2_like();
  const Batch batch = make_batch(2, 12);
  Model tied(config);
  config.share_embeddings_and_output_weights = false;
  Model untied(config);
  untied["output_layer.weight"].data.detach().copy_(untied["embedding.word_embeddings.weight"].data);
  EXPECT_TRUE(at::equal(token_losses(tied, batch, evaluation(12)), token_losses(untied, batch, evaluation(12))));
  backward(tied, batch, evaluation(12));
  backward(untied, batch, evaluation(12));
  const at::Tensor &ends = untied["embedding.word_embeddings.weight"].main_grad,
                   &output = untied["output_layer.weight"].main_grad;
  EXPECT_GT(ends.abs().sum().item<double>(), 0);
  EXPECT_GT(output.abs().sum().item<double>(), 0);
  EXPECT_LT(distance(tied["embedding.word_embeddings.weight"].main_grad, ends + output), 1e-5);
}

TEST(Transformer, PaddingOfTheVocabularyTakesNoPart) {
  for (const bool is_tied : {true, false}) {
    ModelConfig config = llama_like();
    config.share_embeddings_and_output_weights = is_tied;
    Model plain(config);
    config.should_pad_vocab = true;
    Model padded(config);
    const Batch batch = make_batch(2, 12);
    EXPECT_LT(distance(token_losses(padded, batch, evaluation(12)).detach(),
                       token_losses(plain, batch, evaluation(12)).detach()),
              1e-6);
    backward(plain, batch, evaluation(12));
    backward(padded, batch, evaluation(12));
    for (const auto& [name, parameter] : plain.by_name) {
      const at::Tensor& grad = padded[name].main_grad;
      EXPECT_LT(distance(grad.narrow(0, 0, parameter->data.size(0)), parameter->main_grad), 1e-5) << name;
      if (grad.size(0) == parameter->data.size(0)) continue;
      EXPECT_EQ(grad.narrow(0, 61, grad.size(0) - 61).abs().max().item<float>(), 0) << name;
      EXPECT_EQ(padded[name].data.detach().narrow(0, 61, grad.size(0) - 61).abs().max().item<float>(), 0) << name;
    }
  }
}

TEST(Transformer, TwoStagesInARowAreTheWholeModel) {
  const ModelConfig config = llama_like();
  const Model whole(config);
  Transformer first(config, {0, 1, true, false}, comm::Mesh(1, {}), 0),
      second(config, {1, 2, false, true}, comm::Mesh(1, {}), 0);
  first.materialize(at::kCPU, 5);
  second.materialize(at::kCPU, 5);
  EXPECT_EQ(first.parameters().size() + second.parameters().size(), whole.by_name.size());
  const at::NoGradGuard no_grad;
  const Batch batch = make_batch(2, 12);
  const at::Tensor hidden = second.hidden_states(first.hidden_states(batch.tokens, evaluation(12)), evaluation(12));
  EXPECT_TRUE(at::equal(second.token_losses(hidden, batch.labels), token_losses(whole, batch, evaluation(12))));
}

}  // namespace
}  // namespace pharos::model
