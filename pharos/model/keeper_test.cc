// Layers read weights and add gradients only through the parameter's keeper, which may take both away in between.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "pharos/model/model_testing.h"
#include "pharos/nn/linear.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

/// Lends one parameter's values at a time, all others are NaN; lends a gradient from before_gradient() to
/// after_gradient().
class Lender : public tensor::ParameterKeeper {
 public:
  explicit Lender(Transformer& transformer) {
    for (auto* parameter : transformer.parameters()) {
      owned_[parameter] = {parameter->data.detach().clone(), at::zeros(parameter->data.sizes(), at::kFloat), 0};
      take_away(*parameter);
      parameter->main_grad = at::Tensor();
      parameter->keeper = this;
    }
  }

  void before_use(const tensor::Parameter& parameter) override {
    if (lent_ == &parameter) return;
    if (lent_ != nullptr) take_away(*lent_);
    parameter.data.detach().copy_(owned_.at(&parameter).data);
    lent_ = &parameter;
  }
  void before_gradient(const tensor::Parameter& parameter) override {
    const_cast<tensor::Parameter&>(parameter).main_grad = owned_.at(&parameter).gradient;
  }
  void after_gradient(const tensor::Parameter& parameter) override {
    const_cast<tensor::Parameter&>(parameter).main_grad = at::Tensor();
    ++owned_.at(&parameter).num_added;
  }

  const at::Tensor& gradient(const tensor::Parameter& parameter) const { return owned_.at(&parameter).gradient; }
  int num_added(const tensor::Parameter& parameter) const { return owned_.at(&parameter).num_added; }

 private:
  struct Owned {
    at::Tensor data, gradient;
    int num_added = 0;
  };
  static void take_away(const tensor::Parameter& parameter) { parameter.data.detach().fill_(std::nan("")); }

  std::map<const tensor::Parameter*, Owned> owned_;
  const tensor::Parameter* lent_ = nullptr;
};

struct Case {
  const char* name;
  ModelConfig config;
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
};

std::vector<Case> cases() {
  ModelConfig recomputed = testing::gpt2_like();
  recomputed.recompute_granularity = config::RecomputeGranularity::kFull;
  recomputed.recompute_method = config::RecomputeMethod::kUniform;
  recomputed.recompute_num_layers = 2;
  ModelConfig centered = testing::llama_like();
  centered.layernorm_zero_centered_gamma = true;
  ModelConfig bf16 = testing::grouped_with_qk_norm();
  bf16.bf16 = true;
  return {{"Llama", testing::llama_like()},
          {"ZeroCentered", centered},
          {"GroupedWithQkNorm", testing::grouped_with_qk_norm()},
          {"BFloat16", bf16},
          {"Gpt2", testing::gpt2_like()},
          {"Gpt2Recomputed", recomputed}};
}

struct KeptModel : ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Models, KeptModel, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// Loss and gradients to the last bit those of a model whose tensors are simply there, and num_uses gradients of each
// parameter a microbatch, also when weight gradients come later.
TEST_P(KeptModel, IsTheSameModel) {
  at::manual_seed(17);
  const at::Tensor tokens = at::randint(61, {2, 8}, at::kLong), labels = at::randint(61, {2, 8}, at::kLong);
  const auto step = [&](const testing::Model& model, bool queued) {
    nn::ForwardContext context;
    context.positions = at::arange(8, at::kLong);
    nn::WeightGradientQueue queue;
    std::optional<nn::WeightGradientQueue::Scope> scope;
    if (queued) scope.emplace(queue);
    const at::Tensor losses = model.transformer.token_losses(model.transformer.hidden_states(tokens, context), labels);
    torch::autograd::backward({losses.sum()}, {});
    queue.run_all();
    return losses.detach();
  };
  for (const bool queued : {false, true}) {
    testing::Model plain(GetParam().config), kept(GetParam().config);
    Lender lender(kept.transformer);
    EXPECT_TRUE(at::equal(step(kept, queued), step(plain, queued)));
    for (const auto& [name, parameter] : kept.by_name) {
      EXPECT_TRUE(at::equal(lender.gradient(*parameter), plain[name].main_grad)) << name;
      EXPECT_GT(plain[name].main_grad.abs().sum().item<double>(), 0) << name;
      const bool tied =
          GetParam().config.share_embeddings_and_output_weights && name == "embedding.word_embeddings.weight";
      EXPECT_EQ(parameter->num_uses, tied ? 2 : 1) << name;
      EXPECT_EQ(lender.num_added(*parameter), parameter->num_uses) << name;
    }
  }
}

}  // namespace
}  // namespace pharos::model
