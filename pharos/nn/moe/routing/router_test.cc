// The whole router on one rank: logits and their gradients, losses against Megatron and against finite differences,
// capacity, what it counts.
#include "pharos/nn/moe/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pharos/nn/linear.h"
#include "pharos/nn/moe/routing/balance.h"
#include "pharos/nn/moe/routing/choice.h"
#include "pharos/nn/moe/routing/router_test_support.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using config::RouterScoreFunction;

struct RouterTest : ::testing::Test {
  void SetUp() override { at::manual_seed(7); }
};

RouterOptions options_of(std::int64_t experts, std::int64_t topk,
                         std::vector<RouterOptions::Balancing> balancing = {}) {
  RouterOptions options;
  options.num_experts = experts;
  options.topk = topk;
  options.balancing = std::move(balancing);
  return options;
}

TEST_F(RouterTest, LogitsAndGradientsAreThoseOfALinearLayerInTheChosenType) {
  struct Case {
    at::ScalarType hidden, weight;
    std::optional<at::ScalarType> dtype;
    double tolerance;
  };
  const Case cases[] = {{at::kFloat, at::kFloat, {}, 5e-6},
                        {at::kBFloat16, at::kBFloat16, {}, 2e-2},
                        {at::kBFloat16, at::kBFloat16, at::kFloat, 5e-6},
                        {at::kBFloat16, at::kFloat, at::kFloat, 5e-6},
                        {at::kFloat, at::kFloat, at::kDouble, 5e-6}};
  for (const Case& item : cases) {
    for (const bool queued : {false, true}) {
      Router router;
      router.weight = parameter_of(at::randn({6, 8}).to(item.weight));
      router.bias = parameter_of(at::randn({6}).to(item.weight));
      router.options = options_of(6, 6);  // all experts: the choice cannot differ
      router.options.dtype = item.dtype;
      const at::Tensor hidden = leaf_of(at::randn({2, 3, 8}).to(item.hidden)), grad = at::randn({6, 6});
      RouterLoad load;
      WeightGradientQueue queue;
      std::optional<WeightGradientQueue::Scope> scope;
      if (queued) scope.emplace(queue);
      const Routing routing = router.route(hidden, {}, load);
      scope.reset();
      EXPECT_EQ(routing.probabilities.scalar_type(), item.dtype.value_or(item.hidden));
      const at::Tensor probabilities = dense(routing.experts, routing.probabilities, 6);
      backward(probabilities, grad.to(probabilities.scalar_type()));
      EXPECT_EQ(router.weight.main_grad.abs().sum().item<double>() == 0, queued);
      queue.run_all();

      const at::Tensor x = leaf_of(hidden.to(at::kDouble).view({6, 8})),
                       w = leaf_of(router.weight.data.to(at::kDouble)), b = leaf_of(router.bias->data.to(at::kDouble));
      const at::Tensor expected = at::softmax(at::linear(x, w, b), -1);
      backward(expected, grad.to(at::kDouble));
      const double input_tolerance = item.hidden == at::kBFloat16 ? 2e-2 : item.tolerance;  // rounding of the result
      EXPECT_LT(distance(probabilities.detach().to(at::kDouble), expected), item.tolerance);
      EXPECT_LT(distance(hidden.grad().to(at::kDouble).view({6, 8}), x.grad()), input_tolerance);
      EXPECT_LT(distance(router.weight.main_grad.to(at::kDouble), w.grad()), item.tolerance);
      EXPECT_LT(distance(router.bias->main_grad.to(at::kDouble), b.grad()), item.tolerance);
      EXPECT_FALSE(router.weight.data.grad().defined());
    }
  }
}

// Losses and their gradients, injected at the probabilities. A case counts only where Megatron's counts are of plain
// top-k choices, as the router's are; counts of others are held against the equations in BalanceEqualsMegatron.
TEST_F(RouterTest, InjectedLossesEqualMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  int checked = 0;
  for (const nlohmann::json& item : megatron_cases()) {
    const std::string name = item["name"];
    for (const std::string type : {"aux_loss", "seq_aux_loss", "z_loss"}) {
      if (type != "z_loss" && !item["aux_map_equals_routing_map"].get<bool>()) continue;
      SCOPED_TRACE(name + " " + type);
      const std::int64_t experts = item["experts"], batch = item["batch"];
      RouterOptions options = options_of(experts, item["topk"]);
      if (item.value("score_function", "softmax") == "sigmoid") options.score_function = RouterScoreFunction::kSigmoid;
      options.pre_softmax = item.value("pre_softmax", false);
      if (type == "z_loss") {
        options.z_loss_coeff = 1e-3;
      } else {
        options.balancing = {{type, item["aux_loss_coeff"]}};
      }
      const Router router = identity_router(options);
      // Megatron's rows are [tokens, batch].
      const auto by_sequence = [&](const at::Tensor& rows) { return rows.view({-1, batch, experts}).transpose(0, 1); };
      const at::Tensor hidden = leaf_of(by_sequence(fixture[name + "/logits"]).contiguous());
      ForwardContext context = training_context();
      context.auxiliary_loss_scale = 3;
      RouterLoad load;
      const Routing routing = router.route(hidden, context, load);
      backward(routing.probabilities, at::zeros_like(routing.probabilities));
      EXPECT_NEAR(load.losses.at(type).item<double>(), item[type].get<double>(), 1e-7);
      EXPECT_LT(distance(hidden.grad() / 3, by_sequence(fixture[name + "/grad_logits." + type])), 1e-5);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 3 * 2 + 5);
}

TEST_F(RouterTest, BalanceEqualsMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  for (const nlohmann::json& item : megatron_cases()) {
    const std::string name = item["name"];
    SCOPED_TRACE(name);
    const std::int64_t experts = item["experts"], batch = item["batch"], topk = item["topk"], tokens = item["tokens"];
    const auto function = item.value("score_function", "softmax") == "sigmoid" ? RouterScoreFunction::kSigmoid
                                                                               : RouterScoreFunction::kSoftmax;
    const at::Tensor map = fixture[name + "/routing_map"].to(at::kDouble).view({-1, batch, experts});
    for (const bool by_sequence : {false, true}) {
      const at::Tensor logits = leaf_of(fixture[name + "/logits"]);
      const at::Tensor scores = balanced_scores(expert_scores(logits, function), function);
      EXPECT_LT(distance(scores.detach(), fixture[name + "/aux_scores"]), 1e-6);
      const at::Tensor sums = scores.view({-1, batch, experts}).sum(0);
      const double coeff = item["aux_loss_coeff"], all = tokens, each = all / batch;
      const at::Tensor loss = by_sequence
                                  ? balance_loss(sums, map.sum(0), coeff / batch, topk, each, each)
                                  : balance_loss(sums.sum(0, true), map.sum(0).sum(0, true), coeff, topk, all, all);
      const std::string type = by_sequence ? "seq_aux_loss" : "aux_loss";
      EXPECT_NEAR(loss.item<double>(), item[type].get<double>(), 1e-8);
      backward(loss, at::ones({}, at::kDouble));
      EXPECT_LT(distance(logits.grad(), fixture[name + "/grad_logits." + type]), 1e-5);
    }
  }
}

struct GradientCase {
  const char* name;
  std::function<void(RouterOptions&)> change;
  bool expert_bias = false;
};

// d(Σ probabilities · g + scale · losses) / d hidden, by central differences in float64.
TEST_F(RouterTest, GradientsEqualFiniteDifferences) {
  const auto sigmoid = [](RouterOptions& o) { o.score_function = RouterScoreFunction::kSigmoid; };
  const GradientCase cases[] = {
      {"aux",
       [](RouterOptions& o) {
         o.balancing = {{"aux_loss", 0.7}};
       }},
      {"seq_aux",
       [](RouterOptions& o) {
         o.balancing = {{"seq_aux_loss", 0.7}};
       }},
      {"global",
       [](RouterOptions& o) {
         o.balancing = {{"global_aux_loss", 0.7}};
       }},
      {"all",
       [&](RouterOptions& o) {
         sigmoid(o), o.z_loss_coeff = 0.3;
         o.balancing = {{"aux_loss", 0.7}, {"seq_aux_loss", 0.2}, {"global_aux_loss", 0.4}};
       }},
      {"per_token",
       [](RouterOptions& o) {
         o.balancing = {{"aux_loss", 0.7}}, o.calculates_per_token_loss = true;
       }},
      {"groups",
       [](RouterOptions& o) {
         o.pre_softmax = true, o.norm_topk_prob = true, o.scaling_factor = 2.5, o.num_groups = 3, o.group_topk = 2;
         o.balancing = {{"aux_loss", 0.7}};
       }},
      {"bias",
       [&](RouterOptions& o) {
         sigmoid(o), o.balancing = {{"seq_aux_loss", 0.7}};
       },
       true},
      {"sqrtsoftplus",
       [](RouterOptions& o) {
         o.score_function = RouterScoreFunction::kSqrtSoftplus, o.balancing = {{"aux_loss", 0.7}};
       }},
      {"sinkhorn",
       [](RouterOptions& o) {
         o.balancing = {{"sinkhorn", 0}};
       }},
      {"capacity",
       [](RouterOptions& o) {
         o.capacity_factor = 0.8, o.balancing = {{"aux_loss", 0.7}};
       }},
      {"jitter", [](RouterOptions& o) { o.jitter = 0.2, o.z_loss_coeff = 0.3; }},
      {"biased", [](RouterOptions& o) { o.force_biased = 1, o.z_loss_coeff = 0.3; }},
  };
  for (const GradientCase& item : cases) {
    SCOPED_TRACE(item.name);
    RouterOptions options = options_of(6, 2);
    item.change(options);
    Router router = identity_router(options, at::kDouble);
    router.weight = parameter_of(at::randn({6, 5}, at::kDouble));
    if (item.expert_bias) router.expert_bias = parameter_of(0.3 * at::randn({6}));
    ForwardContext context = training_context();
    context.auxiliary_loss_scale = 1.7;
    const at::Tensor hidden = leaf_of(at::randn({2, 4, 5}, at::kDouble)), grad = at::randn({8, 2}, at::kDouble);
    const double factor = context.auxiliary_loss_scale * (options.calculates_per_token_loss ? 8 : 1);
    const auto value = [&](const at::Tensor& input) {
      RouterLoad load;
      double sum = (router.route(input, context, load).probabilities * grad).sum().item<double>();
      for (const auto& [type, loss] : load.losses) sum += factor * loss.item<double>();
      return sum;
    };
    RouterLoad load;
    backward(router.route(hidden, context, load).probabilities, grad);
    const at::Tensor expected = at::zeros_like(hidden).detach().view(-1);
    for (std::int64_t i = 0; i < expected.numel(); ++i) {
      const at::Tensor step = at::zeros_like(expected);
      step[i] = 1e-6;
      const at::Tensor direction = step.view(hidden.sizes());
      expected[i] = (value(hidden.detach() + direction) - value(hidden.detach() - direction)) / 2e-6;
    }
    EXPECT_LT(distance(hidden.grad(), expected.view(hidden.sizes())), 1e-7);
  }
}

TEST_F(RouterTest, ForcedBalanceTakesRandomLogitsAndPassesGradientsOn) {
  RouterOptions options = options_of(8, 2);
  options.force_balance = true;
  const Router router = identity_router(options);
  const at::Tensor hidden = leaf_of(at::full({2, 400, 8}, 3.0) * at::arange(8));
  RouterLoad load;
  const Routing routing = router.route(hidden, training_context(), load);
  const LoadSummary summary = summarize_load(load.tokens_per_expert, 0);
  EXPECT_LT(summary.max_over_mean, 1.3);
  EXPECT_GT(summary.entropy, 0.99);
  backward(routing.probabilities, at::randn({800, 2}));
  EXPECT_TRUE(at::equal((hidden.grad() != 0).sum(-1), at::full({2, 400}, 2, at::kLong)));

  ForwardContext later = training_context();
  ++later.step;
  RouterLoad unused;
  EXPECT_FALSE(at::equal(router.route(hidden, later, unused).experts, routing.experts));
  EXPECT_TRUE(at::equal(router.route(hidden, training_context(), unused).experts, routing.experts));
}

TEST_F(RouterTest, ForcedBiasIsTheSameForAllTokens) {
  const at::Tensor hidden = at::zeros({2, 3, 8});
  const auto choice = [&](double deviation, std::int64_t step) {
    RouterOptions options = options_of(8, 8);
    options.force_biased = deviation;
    ForwardContext context = training_context();
    context.step = step;
    RouterLoad load;
    return identity_router(options).route(hidden, context, load).experts;
  };
  EXPECT_TRUE(at::equal(choice(1, 3), choice(1, 3)[0].expand({6, 8})));
  EXPECT_FALSE(at::equal(choice(1, 3), choice(1, 4)));
  EXPECT_TRUE(at::equal(choice(-1, 3), choice(-1, 4)));
}

TEST_F(RouterTest, JitterIsUniformAroundOneAndInTrainingOnly) {
  RouterOptions options = options_of(4, 4);
  options.jitter = 0.25;
  options.score_function = RouterScoreFunction::kSigmoid;
  options.norm_topk_prob = false;
  const Router router = identity_router(options);
  RouterLoad load;
  const Routing routing = router.route(at::ones({4, 500, 4}), training_context(), load);
  const at::Tensor factors = at::logit(routing.probabilities);
  EXPECT_GT(factors.min().item<double>(), 0.75 - 1e-5);
  EXPECT_LT(factors.max().item<double>(), 1.25 + 1e-5);
  EXPECT_NEAR(factors.mean().item<double>(), 1, 0.01);
  EXPECT_NEAR(factors.std().item<double>(), 0.5 / std::sqrt(12), 0.01);
  const Routing plain = router.route(at::ones({1, 2, 4}), {}, load);
  EXPECT_TRUE(at::equal(plain.probabilities, at::sigmoid(at::ones({2, 4}))));
}

TEST_F(RouterTest, CapacityDropsChoicesAndCountsThem) {
  RouterOptions options = options_of(4, 2);
  options.capacity_factor = 1;
  const Router router = identity_router(options);
  const at::Tensor hidden = at::randn({2, 6, 4}) + at::tensor({4.0, 0.0, 0.0, 0.0});
  RouterLoad load, evaluation;
  const Routing routing = router.route(hidden, training_context(), load);
  EXPECT_EQ(routing.capacity, 6);
  EXPECT_LE(dense(routing.experts, at::ones({12, 2}), 4).sum(0).max().item<double>(), 6);
  const at::Tensor dropped = routing.experts < 0;
  EXPECT_TRUE(at::equal(dropped, routing.probabilities == 0));
  EXPECT_GE(dropped.sum().item<std::int64_t>(), 6);  // all twelve tokens want expert 0
  EXPECT_EQ(load.dropped.item<double>(), dropped.sum().item<double>());
  EXPECT_EQ(load.tokens_per_expert[0].item<double>(), 12);
  EXPECT_EQ(load.tokens_per_expert.sum().item<double>(), 24);

  EXPECT_TRUE(at::equal(router.route(hidden, {}, evaluation).experts, routing.experts));
  EXPECT_FALSE(evaluation.tokens_per_expert.defined());
  RouterOptions unlimited = options;
  unlimited.capacity_factor.reset();
  const Routing all = identity_router(unlimited).route(hidden, {}, evaluation);
  EXPECT_FALSE(all.capacity.has_value());
  EXPECT_TRUE(at::equal(all.probabilities.masked_fill(dropped, 0), routing.probabilities));  // not renormalised
}

TEST_F(RouterTest, NoTokens) {
  for (const char* type : {"aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn"}) {
    RouterOptions options = options_of(4, 2, {{type, std::string(type) == "sinkhorn" ? 0.0 : 0.1}});
    options.z_loss_coeff = 0.1;
    options.capacity_factor = 1;
    options.jitter = 0.1;
    const Router router = identity_router(options);
    const at::Tensor hidden = at::empty({2, 0, 4}).requires_grad_();
    RouterLoad load;
    const Routing routing = router.route(hidden, training_context(), load);
    EXPECT_EQ(routing.experts.sizes(), at::IntArrayRef({0, 2}));
    backward(routing.probabilities, at::empty({0, 2}));
    EXPECT_EQ(router.weight.main_grad.abs().sum().item<double>(), 0);
    EXPECT_EQ(load.tokens_per_expert.sum().item<double>(), 0);
    for (const auto& [name, loss] : load.losses) EXPECT_EQ(loss.item<double>(), 0) << name;
  }
}

// Two microbatches, their forward passes before their backward passes.
TEST_F(RouterTest, RecomputationGivesTheSameGradientsAndCountsNothing) {
  RouterOptions options = options_of(6, 2, {{"global_aux_loss", 0.5}, {"aux_loss", 0.3}});
  options.z_loss_coeff = 0.1;
  options.jitter = 0.2;
  const at::Tensor first = at::randn({2, 4, 6}), second = at::randn({2, 4, 6}), grad = at::randn({8, 6});
  struct Result {
    RouterLoad load;
    at::Tensor first_grad, second_grad, weight_grad;
  };
  const auto run = [&](bool recomputes) {
    Result result;
    Router router = identity_router(options);
    std::vector<at::Tensor> inputs, outputs;
    for (const at::Tensor& hidden : {first, second}) {
      ForwardContext context = training_context();
      context.first_sample = static_cast<std::int64_t>(inputs.size()) * 2;
      inputs.push_back(leaf_of(hidden));
      const auto route = [&router, &result, context](const std::vector<at::Tensor>& input) {
        const Routing routing = router.route(input[0], context, result.load);
        return dense(routing.experts, routing.probabilities, 6);
      };
      outputs.push_back(recomputes ? recompute(route, {inputs.back()}) : route({inputs.back()}));
    }
    for (const at::Tensor& output : outputs) backward(output, grad);
    result.first_grad = inputs[0].grad();
    result.second_grad = inputs[1].grad();
    result.weight_grad = router.weight.main_grad;
    return result;
  };
  const Result plain = run(false), again = run(true);
  EXPECT_TRUE(at::equal(plain.first_grad, again.first_grad));
  EXPECT_TRUE(at::equal(plain.second_grad, again.second_grad));
  EXPECT_TRUE(at::equal(plain.weight_grad, again.weight_grad));
  EXPECT_TRUE(at::equal(plain.load.tokens_per_expert, again.load.tokens_per_expert));
  EXPECT_EQ(again.load.num_tokens, 16);
  EXPECT_EQ(again.load.num_microbatches, 2);
  EXPECT_EQ(again.load.losses.size(), 3);
  for (const auto& [type, loss] : plain.load.losses) EXPECT_TRUE(at::equal(loss, again.load.losses.at(type))) << type;
}

TEST_F(RouterTest, ExpertBiasUpdateEqualsMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  tensor::Parameter bias = parameter_of(fixture["deepseek_v3/expert_bias"]);
  update_expert_bias(bias, fixture["deepseek_v3/routing_map"].to(at::kDouble).sum(0), 1e-3);
  EXPECT_TRUE(at::equal(bias.data, fixture["deepseek_v3/updated_expert_bias"]));
  const at::Tensor before = bias.data.detach().clone();
  update_expert_bias(bias, at::full({16}, 5.0), 1e-3);  // in balance
  EXPECT_TRUE(at::equal(bias.data, before));
}

TEST(Load, Summary) {
  const LoadSummary even = summarize_load(at::full({4}, 3.0, at::kDouble), 0);
  EXPECT_DOUBLE_EQ(even.max_over_mean, 1);
  EXPECT_DOUBLE_EQ(even.entropy, 1);
  EXPECT_EQ(even.num_dead, 0);
  const LoadSummary uneven = summarize_load(at::tensor({6.0, 0.0, 6.0, 0.0}), 3);
  EXPECT_DOUBLE_EQ(uneven.max_over_mean, 2);
  EXPECT_DOUBLE_EQ(uneven.entropy, 0.5);  // ln 2 / ln 4
  EXPECT_EQ(uneven.num_dead, 2);
  EXPECT_DOUBLE_EQ(uneven.dropped_fraction, 0.25);
  EXPECT_DOUBLE_EQ(summarize_load(at::tensor({5.0}), 0).entropy, 1);
  const LoadSummary none = summarize_load(at::zeros({4}), 0);
  EXPECT_EQ(none.num_dead, 4);
  EXPECT_DOUBLE_EQ(none.max_over_mean, 1);
  EXPECT_DOUBLE_EQ(none.dropped_fraction, 0);
}

}  // namespace
}  // namespace pharos::nn
