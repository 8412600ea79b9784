#include "pharos/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/optim/clip.h"
#include "pharos/optim/test_parameters.h"

namespace pharos::optim {
namespace {

const std::vector<std::vector<std::int64_t>> kShapes = {{33, 17}, {40}, {8, 5, 3}, {7}};
constexpr double kLearningRate = 1e-2, kWeightDecay = 0.1;

double max_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// AdamW's equations in double precision (adamw.h).
class Reference {
 public:
  Reference(const TestParameters& parameters, AdamWOptions options) : options_(options) {
    for (const auto& data : parameters.snapshot()) {
      values.push_back(data.to(at::kDouble));
      m_.push_back(at::zeros_like(values.back()));
      v_.push_back(at::zeros_like(values.back()));
    }
  }

  void step(const TestParameters& parameters, double gradient_factor) {
    ++t_;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double decay = parameters[i].weight_decay ? kWeightDecay : 0;
      at::Tensor g = parameters[i].main_grad.to(at::kDouble) * gradient_factor;
      if (options_.decoupled_weight_decay) {
        values[i] = values[i] * (1 - kLearningRate * decay);
      } else {
        g = g + values[i] * decay;
      }
      m_[i] = m_[i] * options_.beta1 + g * (1 - options_.beta1);
      v_[i] = v_[i] * options_.beta2 + g * g * (1 - options_.beta2);
      const at::Tensor root = v_[i].sqrt() / std::sqrt(1 - std::pow(options_.beta2, t_));
      values[i] = values[i] - m_[i] / (root + options_.epsilon) * (kLearningRate / (1 - std::pow(options_.beta1, t_)));
    }
  }

  std::vector<at::Tensor> values;

 private:
  AdamWOptions options_;
  std::vector<at::Tensor> m_, v_;
  int t_ = 0;
};

// 50 steps of either form equal the equations in double to 5e-6 (values up to 4), with and without clipping and a loss
// scale.
TEST(AdamW, EqualsItsEquations) {
  for (const bool decoupled : {true, false}) {
    for (const double clip : {0.0, 1.0, 1e6}) {
      for (const double loss_scale : {1.0, 1024.0}) {
        const TestParameters parameters(kShapes);
        GradientBuffer buffer(parameters.all());
        OptimizerOptions options;
        options.adam = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decoupled_weight_decay = decoupled};
        options.clip_grad = clip;
        options.loss_scaler = LossScaler(loss_scale);
        Optimizer optimizer(buffer, options);
        Reference reference(parameters, options.adam);
        for (int step = 0; step < 50; ++step) {
          parameters.fill_gradients(step, loss_scale * (step % 3 == 0 ? 1e-3 : 1.0));
          const double norm = buffer.flat().to(at::kDouble).norm().item<double>() / loss_scale;
          reference.step(parameters, clip_coefficient(norm, clip) / loss_scale);
          const StepResult result = optimizer.step(kLearningRate, kWeightDecay);
          EXPECT_TRUE(result.update_successful);
          EXPECT_NEAR(result.grad_norm, norm, 1e-6 * norm);
        }
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          EXPECT_LT(max_difference(parameters[i].data.detach(), reference.values[i]), 5e-6)
              << "decoupled " << decoupled << " clip " << clip << " scale " << loss_scale << " parameter " << i;
        }
      }
    }
  }
}

// With zero gradients a decaying parameter becomes p·(1 - lr·wd) each step; the others stay bitwise.
TEST(AdamW, ZeroGradientStillDecays) {
  const TestParameters parameters(kShapes);
  const GradientBuffer buffer(parameters.all());
  Optimizer optimizer(buffer, {});
  const auto before = parameters.snapshot();
  EXPECT_EQ(optimizer.step(kLearningRate, kWeightDecay).grad_norm, 0);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].weight_decay) {
      EXPECT_LT(max_difference(parameters[i].data.detach(), before[i] * (1 - kLearningRate * kWeightDecay)), 1e-6);
      EXPECT_GT(max_difference(parameters[i].data.detach(), before[i]), 1e-4);
    } else {
      EXPECT_TRUE(at::equal(parameters[i].data.detach(), before[i]));
    }
  }
}

// Weights that are trained from update 300 on take the steps of a first one, beside weights in their 301st; what is
// saved says so. State of before, which does not, gives all of them the same count.
TEST(AdamW, CountsTheUpdatesOfNewlyTrainedWeights) {
  const std::set<std::string> later{"weight_1", "weight_2"};
  const auto first_change = [&](const nlohmann::json& state, const std::set<std::string>& newly_trained) {
    const TestParameters parameters(kShapes);
    const GradientBuffer buffer(parameters.all());
    OptimizerOptions options;
    options.clip_grad = 0;
    Optimizer optimizer(buffer, options);
    optimizer.restore_scalars(state, newly_trained);
    const auto before = parameters.snapshot();
    parameters.fill_gradients(0, 1);
    optimizer.step(kLearningRate, 0);
    std::vector<double> changes;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      changes.push_back(max_difference(parameters[i].data.detach(), before[i]));
    }
    return std::pair(changes, optimizer.save_scalars());
  };
  nlohmann::json state = {{"step", 300}, {"loss_scaler", LossScaler(1.0).save()}};
  const auto [thawed, saved] = first_change(state, later);
  // The first step is lr·sign(g); with zero moments and t = 301 it is lr·0.1/√(0.001/(1 - 0.999³⁰¹)) of that, 1.6.
  const std::vector<double> factors{1.61, 1, 1, 1.61};
  for (std::size_t i = 0; i < factors.size(); ++i) EXPECT_NEAR(thawed[i], factors[i] * kLearningRate, 1e-4) << i;
  EXPECT_EQ(saved["step"], 301);
  EXPECT_EQ(saved["started_at"], nlohmann::json({{"weight_1", 300}, {"weight_2", 300}}));
  const auto [resumed, saved_again] = first_change(saved, {});  // t = 2: 0.1/0.19 / √(0.001/0.001999)
  for (const std::size_t i : {1, 2}) EXPECT_NEAR(resumed[i], 0.7441 * kLearningRate, 1e-4) << i;
  EXPECT_EQ(saved_again["started_at"], saved["started_at"]);
  const auto [alike, saved_alike] = first_change(state, {});
  for (const double change : alike) EXPECT_NEAR(change, 1.61 * kLearningRate, 1e-4);
  EXPECT_FALSE(saved_alike.contains("started_at"));
}

// b = 0.9·b + g + wd·p;  p -= lr·b.
TEST(Sgd, EqualsItsEquations) {
  const TestParameters parameters(kShapes);
  const GradientBuffer buffer(parameters.all());
  OptimizerOptions options;
  options.kind = OptimizerOptions::Kind::kSgd;
  Optimizer optimizer(buffer, options);
  std::vector<at::Tensor> values, momentum;
  for (const auto& data : parameters.snapshot()) {
    values.push_back(data.to(at::kDouble));
    momentum.push_back(at::zeros_like(values.back()));
  }
  for (int step = 0; step < 20; ++step) {
    parameters.fill_gradients(step, 1);
    const double factor = clip_coefficient(buffer.flat().to(at::kDouble).norm().item<double>(), 1.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double decay = parameters[i].weight_decay ? kWeightDecay : 0;
      momentum[i] = momentum[i] * 0.9 + parameters[i].main_grad.to(at::kDouble) * factor + values[i] * decay;
      values[i] = values[i] - momentum[i] * kLearningRate;
    }
    optimizer.step(kLearningRate, kWeightDecay);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT(max_difference(parameters[i].data.detach(), values[i]), 2e-6);
  }
}

std::vector<at::Tensor> all_tensors(const TestParameters& parameters, Optimizer& optimizer) {
  std::vector<at::Tensor> tensors = parameters.snapshot();
  optimizer.for_each_state([&](std::size_t, std::string_view, const at::Tensor& tensor, std::int64_t) {
    tensors.push_back(tensor.clone());
  });
  return tensors;
}

// A NaN, an infinity, or a norm above the threshold: parameters, moments, step count and gradients stay bitwise.
TEST(Optimizer, SkippedStepChangesNothing) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const TestParameters parameters(kShapes, dtype);
    const GradientBuffer buffer(parameters.all());
    OptimizerOptions options;
    options.grad_norm_skip_threshold = 100;
    Optimizer optimizer(buffer, options);
    parameters.fill_gradients(0, 1);
    ASSERT_TRUE(optimizer.step(kLearningRate, kWeightDecay).update_successful);

    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), 1e4f}) {
      parameters.fill_gradients(1, 1);
      parameters[1].main_grad[3] = bad;
      const auto before = all_tensors(parameters, optimizer);
      const at::Tensor gradients = buffer.flat().clone();
      const auto scalars = optimizer.save_scalars();
      const StepResult result = optimizer.step(kLearningRate, kWeightDecay);
      EXPECT_FALSE(result.update_successful);
      EXPECT_EQ(std::isfinite(result.grad_norm), std::isfinite(bad));
      const auto after = all_tensors(parameters, optimizer);
      for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
      EXPECT_TRUE(at::equal(buffer.flat().nan_to_num(), gradients.nan_to_num()));
      EXPECT_EQ(optimizer.save_scalars(), scalars);
    }
    parameters.fill_gradients(1, 1);
    EXPECT_TRUE(optimizer.step(kLearningRate, kWeightDecay).update_successful);
  }
}

// An fp16 overflow spends hysteresis and then halves the scale; a good step counts towards its growth.
TEST(Optimizer, DrivesTheLossScale) {
  const TestParameters parameters(kShapes, at::kHalf);
  const GradientBuffer buffer(parameters.all());
  OptimizerOptions options;
  options.loss_scaler = LossScaler(DynamicLossScale{.initial_scale = 64, .growth_interval = 2, .hysteresis = 1});
  Optimizer optimizer(buffer, options);
  const auto step_with = [&](float value) {
    parameters.fill_gradients(0, optimizer.loss_scale());
    if (!std::isfinite(value)) parameters[0].main_grad[0][0] = value;
    return optimizer.step(kLearningRate, kWeightDecay);
  };
  EXPECT_FALSE(step_with(INFINITY).update_successful);
  EXPECT_EQ(optimizer.loss_scale(), 32);
  const double norm = step_with(0).grad_norm;
  EXPECT_NEAR(step_with(0).grad_norm, norm, 1e-6 * norm);
  EXPECT_EQ(optimizer.loss_scale(), 64);
  EXPECT_NEAR(step_with(0).grad_norm, norm, 1e-6 * norm);
}

// bf16 and fp16 data are the rounded fp32 main parameters, which equal the run that is fp32 throughout, bit for bit.
TEST(Optimizer, KeepsMainParametersInFp32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const TestParameters low(kShapes, dtype), full(kShapes);
    for (std::size_t i = 0; i < full.size(); ++i) full[i].data.detach().copy_(low[i].data.detach());
    const GradientBuffer low_buffer(low.all()), full_buffer(full.all());
    Optimizer low_optimizer(low_buffer, {}), full_optimizer(full_buffer, {});
    for (int step = 0; step < 20; ++step) {
      low.fill_gradients(step, 1);
      full.fill_gradients(step, 1);
      low_optimizer.step(1e-4, kWeightDecay);
      full_optimizer.step(1e-4, kWeightDecay);
    }
    std::size_t num_main = 0;
    low_optimizer.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
      if (name != "main_param") return;
      ++num_main;
      EXPECT_TRUE(at::equal(tensor, full[index].data.detach()));
      EXPECT_TRUE(at::equal(tensor.to(dtype), low[index].data.detach()));
    });
    EXPECT_EQ(num_main, low.size());
  }
}

TEST(Optimizer, TakesLoadedWeightsOver) {
  const TestParameters parameters({{4, 4}}, at::kBFloat16);
  const GradientBuffer buffer(parameters.all());
  Optimizer optimizer(buffer, {});
  parameters[0].data.detach().fill_(3.0);
  optimizer.copy_data_to_main();
  optimizer.step(0, 0);
  EXPECT_TRUE(at::equal(parameters[0].data.detach(), at::full({4, 4}, 3.0, at::kBFloat16)));
}

// Copying every state tensor and the scalars into a new optimizer continues bitwise.
TEST(Optimizer, StateContinuesBitwise) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const TestParameters first(kShapes, dtype), second(kShapes, dtype);
    const GradientBuffer first_buffer(first.all()), second_buffer(second.all());
    Optimizer one(first_buffer, {}), two(second_buffer, {});
    for (int step = 0; step < 5; ++step) {
      first.fill_gradients(step, 1);
      one.step(kLearningRate, kWeightDecay);
    }
    std::map<std::pair<std::size_t, std::string>, at::Tensor> saved;
    one.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
      EXPECT_EQ(tensor.sizes(), first[index].data.sizes());
      saved[{index, std::string(name)}] = tensor.clone();
    });
    EXPECT_EQ(saved.size(), first.size() * (dtype == at::kFloat ? 2 : 3));
    for (std::size_t i = 0; i < first.size(); ++i) second[i].data.detach().copy_(first[i].data.detach());
    two.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
      tensor.copy_(saved.at({index, std::string(name)}));
    });
    two.restore_scalars(nlohmann::json::parse(one.save_scalars().dump()));
    for (int step = 5; step < 8; ++step) {
      first.fill_gradients(step, 1);
      second.fill_gradients(step, 1);
      one.step(kLearningRate, kWeightDecay);
      two.step(kLearningRate, kWeightDecay);
    }
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_TRUE(at::equal(first[i].data.detach(), second[i].data.detach()));
    EXPECT_THROW(two.restore_scalars({{"step", 3}}), base::UserError);
  }
}

TEST(Optimizer, CountsZerosOnRequest) {
  const TestParameters parameters(kShapes);
  const GradientBuffer buffer(parameters.all());
  OptimizerOptions options;
  options.count_zeros = true;
  Optimizer optimizer(buffer, options);
  parameters.fill_gradients(0, 1);
  parameters[1].main_grad.zero_();
  EXPECT_EQ(optimizer.step(kLearningRate, 0).num_zeros, 40);
  EXPECT_EQ(Optimizer(buffer, {}).step(kLearningRate, 0).num_zeros, std::nullopt);
}

TEST(OptimizerOptions, FollowFromTheConfiguration) {
  config::RunConfig config;
  config.optimizer.adam_beta2 = 0.95;
  config.optimizer.clip_grad = 0.5;
  config.optimizer.decoupled_weight_decay = false;
  config.logger.log_num_zeros_in_grad = true;
  OptimizerOptions options = optimizer_options(config);
  EXPECT_EQ(options.adam.beta2, 0.95);
  EXPECT_EQ(options.clip_grad, 0.5);
  EXPECT_FALSE(options.adam.decoupled_weight_decay);
  EXPECT_TRUE(options.count_zeros);
  EXPECT_EQ(options.loss_scaler.scale(), 1);

  config.optimizer.fp16 = true;
  EXPECT_TRUE(optimizer_options(config).loss_scaler.is_dynamic());
  EXPECT_EQ(optimizer_options(config).loss_scaler.scale(), 4294967296.0);
  config.optimizer.loss_scale = 128;
  EXPECT_FALSE(optimizer_options(config).loss_scaler.is_dynamic());
  EXPECT_EQ(optimizer_options(config).loss_scaler.scale(), 128);

  config.optimizer.optimizer = config::OptimizerKind::kSgd;
  EXPECT_EQ(optimizer_options(config).kind, OptimizerOptions::Kind::kSgd);
  config.optimizer.optimizer = config::OptimizerKind::kMuon;
  EXPECT_THROW(optimizer_options(config), base::UserError);
  config.optimizer.optimizer = config::OptimizerKind::kAdam;
  config.optimizer.exp_avg_dtype = config::DType::kBFloat16;
  EXPECT_THROW(optimizer_options(config), base::UserError);
}

}  // namespace
}  // namespace pharos::optim
