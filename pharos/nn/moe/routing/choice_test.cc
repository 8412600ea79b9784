// Scores and choice against Megatron (tests/data/megatron/moe.*) and transformers (tests/data/moe), and at their edges.
#include "pharos/nn/moe/routing/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "pharos/nn/moe/routing/capacity.h"
#include "pharos/nn/moe/routing/router_test_support.h"

namespace pharos::nn {
namespace {

using config::RouterGroupScore;
using config::RouterScoreFunction;
using config::TokenDropPolicy;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Routing choose(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {}) {
  return choose_experts(logits, expert_scores(logits, options.score_function), bias, options);
}

RouterOptions megatron_options(const nlohmann::json& item) {
  RouterOptions options;
  options.num_experts = item["experts"];
  options.topk = item["topk"];
  options.pre_softmax = item.value("pre_softmax", false);
  if (item.value("score_function", "softmax") == "sigmoid") options.score_function = RouterScoreFunction::kSigmoid;
  if (item.contains("num_groups")) options.num_groups = item["num_groups"];
  if (item.contains("group_topk")) options.group_topk = item["group_topk"];
  if (item.contains("scaling_factor")) options.scaling_factor = item["scaling_factor"];
  return options;
}

TEST(Choice, EqualsMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  for (const nlohmann::json& item : megatron_cases()) {
    const std::string name = item["name"];
    SCOPED_TRACE(name);
    const auto value = [&](const std::string& key) { return fixture[name + "/" + key]; };
    const RouterOptions options = megatron_options(item);
    const at::Tensor logits = leaf_of(value("logits"));
    const at::Tensor bias = fixture.has(name + "/expert_bias") ? value("expert_bias") : at::Tensor();
    const Routing routing = choose(logits, options, bias);
    EXPECT_TRUE(at::equal(map_of(routing.experts, options.num_experts), value("routing_map")));
    const at::Tensor probabilities = dense(routing.experts, routing.probabilities, options.num_experts);
    EXPECT_LT(distance(probabilities.detach(), value("probs")), 1e-6);
    backward(probabilities, value("probs_grad_output"));
    EXPECT_LT(distance(logits.grad(), value("grad_logits.probs")), 1e-5);
  }
}

TEST(Choice, CapacityIsAtMostAllTokens) {
  for (const double factor : {4.0, 1e17, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(expert_capacity(1000, 2, 8, factor), 1000) << factor;
  }
  EXPECT_EQ(expert_capacity(1000, 2, 8, 1e-9), 1);
}

TEST(Choice, DroppingEqualsMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  for (const nlohmann::json& item : megatron_cases()) {
    const std::string name = item["name"];
    SCOPED_TRACE(name);
    const RouterOptions options = megatron_options(item);
    const at::Tensor bias = fixture.has(name + "/expert_bias") ? fixture[name + "/expert_bias"] : at::Tensor();
    const Routing routing = choose(fixture[name + "/logits"], options, bias);
    const std::int64_t capacity =
        expert_capacity(item["tokens"], options.topk, options.num_experts, item.value("capacity_factor", 1.0));
    EXPECT_EQ(capacity, item["capacity"].get<std::int64_t>());
    const at::Tensor dropped = beyond_capacity(routing.experts, routing.probabilities, options.num_experts, capacity,
                                               TokenDropPolicy::kProbabilities);
    EXPECT_GT(dropped.sum().item<std::int64_t>(), 0);
    const at::Tensor kept = routing.experts.masked_fill(dropped, -1);
    EXPECT_TRUE(at::equal(map_of(kept, options.num_experts), fixture[name + "/drop.probs.nopad.map"]));
    EXPECT_LT(
        distance(dense(kept, routing.probabilities, options.num_experts), fixture[name + "/drop.probs.nopad.probs"]),
        1e-6);
  }
}

struct HuggingFaceCase {
  const char* name;
  RouterOptions options;
};

RouterOptions with(std::int64_t experts, std::int64_t topk, const std::function<void(RouterOptions&)>& change) {
  RouterOptions options;
  options.num_experts = experts;
  options.topk = topk;
  change(options);
  return options;
}

RouterOptions deepseek_v3(double factor, bool norm) {
  return with(16, 4, [&](RouterOptions& o) {
    o.score_function = RouterScoreFunction::kSigmoid;
    o.num_groups = 4, o.group_topk = 2, o.group_score = RouterGroupScore::kSumOfTwo;
    o.scaling_factor = factor, o.norm_topk_prob = norm;
  });
}

TEST(Choice, EqualsTransformers) {
  const Fixture fixture("moe/hf_routers.safetensors");
  const auto normed = [](RouterOptions& o) { o.pre_softmax = true, o.norm_topk_prob = true; };
  const auto plain = [](RouterOptions& o) { o.pre_softmax = true, o.norm_topk_prob = false; };
  const HuggingFaceCase cases[] = {
      {"mixtral", with(8, 2, [](RouterOptions&) {})},
      {"mixtral", with(8, 2, normed)},
      {"qwen3_moe_norm", with(12, 3, normed)},
      {"qwen3_moe_plain", with(12, 3, plain)},
      {"deepseek_v2_groups", with(16, 4,
                                  [](RouterOptions& o) {
                                    o.pre_softmax = true, o.scaling_factor = 16;
                                    o.num_groups = 4, o.group_topk = 2, o.group_score = RouterGroupScore::kMaximum;
                                  })},
      {"deepseek_v3", deepseek_v3(2.5, true)},
      {"deepseek_v3_plain", deepseek_v3(1.5, false)},
  };
  for (const HuggingFaceCase& item : cases) {
    SCOPED_TRACE(item.name);
    const auto value = [&](const std::string& key) { return fixture[std::string(item.name) + "/" + key]; };
    const at::Tensor logits = leaf_of(value("logits"));
    const at::Tensor bias = fixture.has(std::string(item.name) + "/bias") ? value("bias") : at::Tensor();
    const Routing routing = choose(logits, item.options, bias);
    const auto [experts, order] = routing.experts.sort(-1);
    EXPECT_TRUE(at::equal(experts, value("topk_index")));
    const at::Tensor weights = routing.probabilities.gather(-1, order);
    EXPECT_LT(distance(weights.detach(), value("topk_weight")), 1e-6);
    backward(weights, value("weight_grad"));
    EXPECT_LT(distance(logits.grad(), value("grad_logits")), 1e-5);
  }
}

TEST(Choice, EqualsRoutersOfTransformersModels) {
  const Fixture fixture("moe/hf_routers.safetensors");
  const RouterOptions mixtral = with(4, 2, [](RouterOptions&) {});
  const RouterOptions deepseek = with(8, 3, [](RouterOptions& o) { o.pre_softmax = true, o.scaling_factor = 1; });
  const HuggingFaceCase cases[] = {{"mixtral/router.0.", mixtral},
                                   {"mixtral/router.1.", mixtral},
                                   {"deepseek_v2/router.1.", deepseek},
                                   {"deepseek_v2/router.2.", deepseek}};
  for (const HuggingFaceCase& item : cases) {
    const std::string name = item.name;
    const Routing routing = choose(fixture[name + "logits"], item.options);
    const auto [experts, order] = routing.experts.sort(-1);
    EXPECT_TRUE(at::equal(experts, fixture[name + "topk_index"])) << name;
    EXPECT_LT(distance(routing.probabilities.gather(-1, order), fixture[name + "topk_weight"]), 1e-6) << name;
  }
}

TEST(Choice, GroupsOfEveryKindLeaveOnlyExpertsOfTheBestGroups) {
  // Groups {0, 1}, {2, 3}, {4, 5}: sums 1.2, 1.1, 1.0, largest 0.6, 1.0, 0.9.
  const at::Tensor scores = at::tensor({0.6, 0.6, 1.0, 0.1, 0.9, 0.1}).view({1, 6});
  const auto limited = [&](RouterGroupScore kind, std::int64_t topk, std::int64_t group_topk) {
    return limit_to_groups(scores, with(6, topk, [&](RouterOptions& o) {
                             o.num_groups = 3, o.group_topk = group_topk, o.group_score = kind;
                           }));
  };
  const at::Tensor first = at::tensor({0.6, 0.6, -kInfinity, -kInfinity, -kInfinity, -kInfinity}).view({1, 6});
  const at::Tensor second = at::tensor({-kInfinity, -kInfinity, 1.0, 0.1, -kInfinity, -kInfinity}).view({1, 6});
  EXPECT_TRUE(at::equal(limited(RouterGroupScore::kSumOfTwo, 2, 1), first));
  EXPECT_TRUE(at::equal(limited(RouterGroupScore::kSumOfTopk, 2, 1), first));
  EXPECT_TRUE(at::equal(limited(RouterGroupScore::kSumOfTopk, 1, 1), second));
  EXPECT_TRUE(at::equal(limited(RouterGroupScore::kMaximum, 2, 1), second));
  EXPECT_TRUE(at::equal(limited(RouterGroupScore::kMaximum, 2, 3), scores));
  EXPECT_ANY_THROW(limited(RouterGroupScore::kSumOfTopk, 1, 2));  // topk / group_topk is 0
  EXPECT_ANY_THROW(limited(RouterGroupScore::kMaximum, 3, 1));    // a group has two experts
}

TEST(Choice, TopExpertsAreThoseOfTopk) {
  at::manual_seed(7);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const auto& [experts, topk] : {std::pair{64, 6}, {7, 7}, {5, 1}, {1, 1}}) {
      const at::Tensor scores = at::randn({500, experts}, type);
      EXPECT_TRUE(at::equal(top_experts(scores, topk), std::get<1>(at::topk(scores, topk, -1))));
      EXPECT_TRUE(at::equal(top_experts(scores.t().contiguous().t(), topk), top_experts(scores, topk)));
    }
  }
  const at::Tensor ties = at::tensor({1.0, 2.0, 1.0, 2.0, 2.0}).view({1, 5});
  EXPECT_TRUE(at::equal(top_experts(ties, 4), at::tensor({1, 3, 4, 0}, at::kLong).view({1, 4})));
  // Experts of a token whose scores are not numbers are still experts: the loss shows what is wrong, not a crash.
  const at::Tensor broken = at::full({2, 5}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(at::equal(std::get<0>(top_experts(broken, 5).sort(-1)), at::arange(5).expand({2, 5})));
  EXPECT_ANY_THROW(top_experts(ties, 6));
}

TEST(Choice, EveryTokenGetsDifferentExpertsWhateverItsScores) {
  for (const double fill : {0.0, -1e30, 200.0}) {  // ties; scores that underflow
    for (const RouterScoreFunction function :
         {RouterScoreFunction::kSoftmax, RouterScoreFunction::kSigmoid, RouterScoreFunction::kSqrtSoftplus}) {
      const RouterOptions options = with(7, 7, [&](RouterOptions& o) { o.score_function = function; });
      const at::Tensor logits = at::full({5, 7}, fill).requires_grad_();
      const Routing routing = choose(logits, options);
      EXPECT_TRUE(at::equal(std::get<0>(routing.experts.sort(-1)), at::arange(7).expand({5, 7})));
      backward(routing.probabilities, at::ones({5, 7}));
      EXPECT_TRUE(logits.grad().isfinite().all().item<bool>());
      EXPECT_TRUE(routing.probabilities.isfinite().all().item<bool>());
    }
  }
}

TEST(Choice, WeightsComeInTheTypeOfTheLogits) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor logits = at::randn({4, 6}, type);
    const RouterOptions options = with(6, 2, [](RouterOptions& o) { o.pre_softmax = true; });
    EXPECT_EQ(choose(logits, options).probabilities.scalar_type(), type);
    EXPECT_EQ(choose_by_sinkhorn(logits, 2, true, nullptr).probabilities.scalar_type(), type);
  }
}

TEST(Choice, SqrtSoftplusWeights) {
  const at::Tensor logits = at::randn({6, 5}, at::kDouble);
  const at::Tensor scores = at::log1p(at::exp(logits)).sqrt();
  const RouterOptions options =
      with(5, 2, [](RouterOptions& o) { o.score_function = RouterScoreFunction::kSqrtSoftplus, o.scaling_factor = 3; });
  const auto [values, indices] = at::topk(scores, 2, -1);
  const Routing routing = choose(logits, options);
  EXPECT_TRUE(at::equal(routing.experts, indices));
  EXPECT_LT(distance(routing.probabilities, 3 * values / values.sum(-1, true)), 1e-7);
}

TEST(Choice, SinkhornEqualsMegatron) {
  const Fixture fixture("megatron/moe.safetensors");
  const at::Tensor logits = fixture["sinkhorn/logits"];
  EXPECT_LT(distance(sinkhorn(logits, nullptr), fixture["sinkhorn/result"]), 1e-5);
  // Row factors and their like do not change it, nor do they overflow.
  EXPECT_LT(distance(sinkhorn(logits + 500, nullptr), fixture["sinkhorn/result"]), 1e-4);
  EXPECT_EQ(sinkhorn(logits.narrow(0, 0, 0), nullptr).size(0), 0);
}

TEST(Choice, SinkhornChoosesInTrainingOnly) {
  const at::Tensor logits = at::zeros({8, 2}).requires_grad_();
  logits.detach().select(1, 0).copy_(at::arange(1, 9));  // everyone likes expert 0, the later the more
  const Routing balanced = choose_by_sinkhorn(logits, 1, true, nullptr);
  EXPECT_TRUE(at::equal(balanced.experts.flatten(), at::tensor({1, 1, 1, 1, 0, 0, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(balanced.probabilities, at::sigmoid(logits).gather(1, balanced.experts)));
  EXPECT_EQ(choose_by_sinkhorn(logits, 1, false, nullptr).experts.sum().item<std::int64_t>(), 0);
  const Routing both = choose_by_sinkhorn(logits, 2, true, nullptr);
  EXPECT_TRUE(at::equal(both.probabilities, at::softmax(logits, -1).gather(1, both.experts)));
}

TEST(Capacity, IsTheMeanTimesTheFactorRoundedUp) {
  EXPECT_EQ(expert_capacity(24, 2, 8, 1.0), 6);
  EXPECT_EQ(expert_capacity(25, 2, 8, 1.0), 7);  // 6.25
  EXPECT_EQ(expert_capacity(24, 1, 8, 0.5), 2);  // 1.5
  EXPECT_EQ(expert_capacity(24, 2, 8, 100.0), 24);
  EXPECT_EQ(expert_capacity(0, 2, 8, 1.0), 0);
}

TEST(Capacity, KeepsTheHighestOrTheEarliest) {
  const at::Tensor experts = at::tensor({0, 1, 0, 2, 0, 1, 1, 0}, at::kLong).view({4, 2});
  const at::Tensor probabilities = at::tensor({0.3, 0.7, 0.9, 0.1, 0.3, 0.7, 0.7, 0.4}).view({4, 2});
  const auto dropped = [&](TokenDropPolicy policy, std::int64_t capacity) {
    return beyond_capacity(experts, probabilities, 3, capacity, policy).flatten().to(at::kInt);
  };
  // Expert 0: 0.3 0.9 0.3 0.4; expert 1: 0.7 three times, of which the earlier stay.
  EXPECT_TRUE(at::equal(dropped(TokenDropPolicy::kProbabilities, 2), at::tensor({1, 0, 0, 0, 1, 0, 1, 0}, at::kInt)));
  EXPECT_TRUE(at::equal(dropped(TokenDropPolicy::kPosition, 2), at::tensor({0, 0, 0, 0, 1, 0, 1, 1}, at::kInt)));
  EXPECT_EQ(dropped(TokenDropPolicy::kPosition, 4).sum().item<int>(), 0);
  EXPECT_EQ(dropped(TokenDropPolicy::kPosition, 0).sum().item<int>(), 8);
  for (const TokenDropPolicy policy : {TokenDropPolicy::kProbabilities, TokenDropPolicy::kPosition}) {
    EXPECT_EQ(beyond_capacity(experts.narrow(0, 0, 0), probabilities.narrow(0, 0, 0), 3, 0, policy).size(0), 0);
  }
}

}  // namespace
}  // namespace pharos::nn
