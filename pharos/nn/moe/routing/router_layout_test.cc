// A router over tokens that are divided over ranks against the same router on one rank: the same choice, the same
// losses, gradients that are its slices or sum to its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/comm/testing.h"
#include "pharos/nn/context_parallel/zigzag.h"
#include "pharos/nn/moe/routing/balance.h"
#include "pharos/nn/moe/routing/router_test_support.h"

namespace pharos::nn {
namespace {

constexpr std::int64_t kBatch = 2, kTokens = 16, kExperts = 6;

struct Layout {
  std::int64_t tensor, context;
};

/// The place of a rank among tensor × context ranks, the former varying faster.
struct Place {
  TensorParallel parallel;
  ContextParallel context_parallel;

  Place(comm::World& world, const Layout& layout) {
    const std::int64_t t = world.rank() % layout.tensor, c = world.rank() / layout.tensor;
    std::vector<std::int64_t> tensor, context;
    for (std::int64_t i = 0; i < layout.tensor; ++i) tensor.push_back(c * layout.tensor + i);
    for (std::int64_t i = 0; i < layout.context; ++i) context.push_back(i * layout.tensor + t);
    if (layout.tensor > 1) parallel = {&world.group("tp" + std::to_string(c), tensor), true};
    if (layout.context > 1) context_parallel = {.group = &world.group("cp" + std::to_string(t), context)};
  }

  /// This rank's part of [batch, tokens, …].
  at::Tensor part(const at::Tensor& whole) const {
    const at::Tensor mine = zigzag_slice(whole.detach(), 1, context_parallel.rank(), context_parallel.size());
    const std::int64_t count = mine.size(1) / parallel.size();
    return mine.narrow(1, parallel.rank() * count, count).contiguous();
  }
};

struct Result {
  Routing routing;
  RouterLoad load;
  at::Tensor hidden_grad;
  Router router;
};

Result run(Router router, const at::Tensor& hidden, const at::Tensor& grad) {
  Result result;
  ForwardContext context = training_context();
  context.auxiliary_loss_scale = 1.5;
  context.first_sample = 4;
  const at::Tensor input = leaf_of(hidden);
  result.router = std::move(router);
  result.routing = result.router.route(input, context, result.load);
  backward(dense(result.routing.experts, result.routing.probabilities, kExperts), grad);
  result.hidden_grad = input.grad();
  return result;
}

at::Tensor sum_over(comm::World& world, const at::Tensor& values) {
  const at::Tensor sum = values.detach().clone();
  world.all().all_reduce(sum, comm::ReduceOp::kSum, {"test"}).wait();
  return sum;
}

struct Case {
  const char* name;
  std::function<void(RouterOptions&)> change;
  bool expert_bias = false;
};

const Case kCases[] = {
    {"losses",
     [](RouterOptions& o) {
       o.balancing = {{"aux_loss", 0.5}, {"seq_aux_loss", 0.3}, {"global_aux_loss", 0.4}};
       o.z_loss_coeff = 0.2;
     }},
    {"per_token",
     [](RouterOptions& o) {
       o.balancing = {{"aux_loss", 0.5}}, o.calculates_per_token_loss = true;
     }},
    {"groups",
     [](RouterOptions& o) {
       o.score_function = config::RouterScoreFunction::kSigmoid;
       o.num_groups = 3, o.group_topk = 2, o.balancing = {{"seq_aux_loss", 0.3}};
     },
     true},
    {"jitter",
     [](RouterOptions& o) {
       o.jitter = 0.3, o.balancing = {{"aux_loss", 0.5}};
     }},
    {"forced", [](RouterOptions& o) { o.force_balance = true, o.force_biased = 0.5, o.z_loss_coeff = 0.2; }},
    {"sinkhorn",
     [](RouterOptions& o) {
       o.balancing = {{"sinkhorn", 0}};
     }},
};

Router make_router(const Case& item, const at::Tensor& weight, const at::Tensor& expert_bias) {
  Router router;
  router.weight = parameter_of(weight);
  router.options.num_experts = kExperts;
  router.options.topk = 2;
  router.options.name = "decoder.layers.1.mlp.router";
  item.change(router.options);
  if (item.expert_bias) router.expert_bias = parameter_of(expert_bias);
  return router;
}

TEST(RouterLayouts, TokensDividedOverTensorAndContextRanks) {
  at::manual_seed(7);
  const at::Tensor weight = at::randn({kExperts, 5}), expert_bias = 0.3 * at::randn({kExperts});
  const at::Tensor hidden = at::randn({kBatch, kTokens, 5}), grad = at::randn({kBatch, kTokens, kExperts});
  for (const Layout& layout : {Layout{2, 1}, Layout{1, 2}, Layout{2, 2}}) {
    comm::testing::run_ranks(layout.tensor * layout.context, [&](comm::World& world) {
      const Place place(world, layout);
      for (const Case& item : kCases) {
        SCOPED_TRACE(std::string(item.name) + ", TP " + std::to_string(layout.tensor) + ", CP " +
                     std::to_string(layout.context));
        const Result whole =
            run(make_router(item, weight, expert_bias), hidden, grad.view({kBatch * kTokens, kExperts}));
        Router router = make_router(item, weight, expert_bias);
        router.parallel = place.parallel;
        router.context_parallel = place.context_parallel;
        router.tokens_group = router.balance_group = &world.all();
        const Result part = run(std::move(router), place.part(hidden), place.part(grad).flatten(0, 1));

        const auto part_of = [&](const at::Tensor& rows) {
          return place.part(rows.unflatten(0, {kBatch, kTokens})).flatten(0, 1);
        };
        EXPECT_TRUE(at::equal(part.routing.experts, part_of(whole.routing.experts)));
        EXPECT_LT(distance(part.routing.probabilities.detach(), part_of(whole.routing.probabilities)), 1e-6);
        EXPECT_LT(distance(part.hidden_grad, place.part(whole.hidden_grad)), 1e-5);
        EXPECT_LT(distance(sum_over(world, part.router.weight.main_grad), whole.router.weight.main_grad), 1e-5);
        EXPECT_TRUE(at::equal(sum_over(world, part.load.tokens_per_expert), whole.load.tokens_per_expert));
        EXPECT_EQ(part.load.losses.size(), whole.load.losses.size());
        for (const auto& [type, loss] : whole.load.losses) {
          EXPECT_NEAR(sum_over(world, part.load.losses.at(type)).item<double>(), loss.item<double>(), 1e-6) << type;
        }
      }
    });
  }
}

// Two data-parallel ranks with a sequence each, averaged, are one rank with both sequences.
TEST(RouterLayouts, GlobalBalanceDoesNotDependOnDataParallelRanks) {
  at::manual_seed(7);
  const Case item{"global", [](RouterOptions& o) { o.balancing = {{"global_aux_loss", 0.4}}; }};
  const at::Tensor weight = at::randn({kExperts, 5}), hidden = at::randn({2, kTokens, 5});
  const Result whole = run(make_router(item, weight, {}), hidden, at::zeros({2 * kTokens, kExperts}));
  comm::testing::run_ranks(2, [&](comm::World& world) {
    Router router = make_router(item, weight, {});
    router.balance_group = &world.all();
    const at::Tensor mine = hidden.narrow(0, world.rank(), 1);
    const Result part = run(std::move(router), mine, at::zeros({kTokens, kExperts}));
    EXPECT_LT(distance(sum_over(world, part.router.weight.main_grad) / 2, whole.router.weight.main_grad), 1e-5);
    EXPECT_NEAR(sum_over(world, part.load.losses.at("global_aux_loss")).item<double>() / 2,
                whole.load.losses.at("global_aux_loss").item<double>(), 1e-6);
  });
}

// g is the mean over the microbatches so far: c₁, then (c₁ + c₂) / 2.
TEST(RouterLayouts, GlobalBalanceAveragesOverMicrobatches) {
  at::manual_seed(7);
  const Case item{"global", [](RouterOptions& o) { o.balancing = {{"global_aux_loss", 0.4}}; }};
  const Router router = make_router(item, at::randn({kExperts, 5}), {});
  RouterLoad load;
  double sum = 0;
  at::Tensor counts = at::zeros({1, kExperts}, at::kDouble);
  for (const int microbatch : {1, 2, 3}) {
    ForwardContext context = training_context();
    context.first_sample = microbatch * kBatch;
    const at::Tensor hidden = at::randn({kBatch, kTokens, 5});
    const Routing routing = router.route(hidden, context, load);
    counts += count_choices(routing.experts, kExperts, 1);
    const at::Tensor scores = at::softmax(at::linear(hidden, router.weight.data.detach()), -1).to(at::kDouble);
    constexpr double kAll = kBatch * kTokens;
    sum += 0.4 * kExperts / (2 * kAll * kAll) * (counts / microbatch * scores.sum({0, 1})).sum().item<double>();
    EXPECT_NEAR(load.losses.at("global_aux_loss").item<double>(), sum, 1e-6);
  }
}

}  // namespace
}  // namespace pharos::nn
