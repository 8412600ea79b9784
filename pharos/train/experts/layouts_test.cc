// Two steps of a model with experts, their biases, auxiliary losses and multi-token prediction: every layout against
// one rank.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>

#include "pharos/comm/testing.h"
#include "pharos/model/model_testing.h"
#include "pharos/model/stages.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/pipeline/run_schedule.h"
#include "pharos/train/experts/router_watch.h"
#include "pharos/train/forward_backward.h"

namespace pharos::train {
namespace {

constexpr std::int64_t kTokens = 16, kNumMicrobatches = 4, kRows = 2;
constexpr int kSteps = 2;

struct Layout {
  const char* name;
  std::int64_t num_ranks;
  comm::ParallelSizes sizes;
  config::ShardingStrategy strategy = config::ShardingStrategy::kNoShard;
};

config::RunConfig configuration(const comm::ParallelSizes& sizes, bool per_token) {
  config::RunConfig config;
  config.model = model::testing::deepseek_v3_like();
  config::ModelConfig& model = config.model;
  model.num_layers = 4;
  model.moe_layer_freq = std::vector<std::int64_t>{0, 1, 0, 1};
  model.seq_length = kTokens;
  model.mtp_num_layers = 2;
  model.mtp_loss_scaling_factor = 0.5;
  model.moe_router_load_balancing_type = {"seq_aux_loss", "aux_loss"};
  model.moe_aux_loss_coeff = {0.1, 0.05};
  model.moe_router_bias_update_rate = 1.0 / 128;
  model.moe_token_dispatcher_type = config::TokenDispatcher::kAllToAll;
  model.calculate_per_token_loss = per_token;
  model.should_pad_vocab = true;
  model.make_vocab_size_divisible_by = 8;
  model.tensor_model_parallel_size = sizes.tensor;
  model.sequence_parallel = sizes.tensor > 1;
  model.context_parallel_size = sizes.context;
  model.pipeline_model_parallel_size = sizes.pipeline;
  model.expert_model_parallel_size = sizes.expert;
  model.expert_tensor_parallel_size = sizes.expert_tensor;
  config.train.micro_batch_size = kRows;
  config.rng.seed = 5;
  return config;
}

/// Microbatch `number` of the global batch of a step; a third of its tokens has no loss.
Microbatch microbatch_of(int step, std::int64_t number) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(100 * step + number));
  const at::Tensor ids = at::randint(0, 61, {kRows, kTokens + 1}, generator, at::kLong);
  Microbatch batch;
  batch.tokens = ids.narrow(1, 0, kTokens).contiguous();
  batch.labels = ids.narrow(1, 1, kTokens).contiguous();
  batch.loss_mask = (batch.tokens % 3 != 0).to(at::kFloat);
  batch.positions = at::arange(kTokens, at::kLong);
  batch.num_loss_tokens = batch.loss_mask.sum();
  batch.first_sample = number * kRows;
  return batch;
}

struct Outcome {
  std::vector<double> numbers;  ///< of all steps: losses, norm, loads
  std::map<std::string, at::Tensor> biases;
};

/// One rank's part of a run.
class RankRun {
 public:
  RankRun(comm::World& world, const Layout& layout, bool per_token)
      : config_(configuration(layout.sizes, per_token)), parallel_(world, config_) {
    const std::vector<model::Stage> stages = model::stages_of(config_.model);
    const std::vector<int> mine =
        pipeline::stages_of_ranks(config_.model).at(static_cast<std::size_t>(parallel_.pipeline.rank()));
    for (const int stage : mine) {
      chunks_.push_back(std::make_unique<model::Transformer>(config_.model, stages.at(static_cast<std::size_t>(stage)),
                                                             parallel_.mesh, parallel_.rank, parallel_.model));
      chunks_.back()->materialize(at::kCPU, 5);
      passed_.push_back(chunks_.back().get());
      parameters_.push_back(chunks_.back()->parameters());
    }
    passes_ = std::make_unique<ForwardBackward>(config_, passed_, parallel_);
    routers_ = std::make_unique<RouterWatch>(config_, passed_, parallel_.model.balance, parallel_.pipeline,
                                             parallel_.data.size(), at::kCPU);
    optim::OptimizerOptions optimizer;
    optimizer.kind = optim::OptimizerOptions::Kind::kSgd;
    const std::vector<int> ranks = pipeline::ranks_of_stages(config_.model);
    optimizer_ = std::make_unique<optim::DataParallel>(
        parameters_,
        optim::parallel_groups(world, parallel_.mesh, optim::all_parameters(parameters_),
                               {.embedding = ranks.front(), .output = ranks.back()}),
        parallel_.mesh, parallel_.rank,
        optim::DataParallelOptions{.strategy = layout.strategy,
                                   .overlap_grad_reduce = layout.strategy != config::ShardingStrategy::kNoShard,
                                   .averages = !per_token},
        optimizer);
  }

  Outcome go() {
    Outcome outcome;
    for (int step = 0; step < kSteps; ++step) add_step(step, outcome.numbers);
    outcome.numbers.push_back(optimizer_->params_norm());
    for (model::Transformer* chunk : passed_) {
      for (model::TransformerLayer* layer : chunk->moe_layers())
        outcome.biases[layer->name] = layer->moe()->router.expert_bias->data.detach().clone();
    }
    return outcome;
  }

 private:
  void add_step(int step, std::vector<double>& numbers) {
    const auto num_microbatches = static_cast<int>(kNumMicrobatches / parallel_.data.size());
    optimizer_->begin_step(num_microbatches);
    StepInput input{
        .step = step,
        .num_microbatches = num_microbatches,
        .loss_scale = 4,
        .microbatch =
            [&](int index) { return microbatch_of(step, index * parallel_.data.size() + parallel_.data.rank()); },
        .begin_pass = [&](std::size_t chunk) { optimizer_->begin_pass(chunk); }};
    StepTimes times;
    const LossSums sums = passes_->train(input, times);
    optimizer_->finish_gradients();
    std::vector<double> losses{sums.loss, sums.tokens};
    for (std::size_t depth = 0; depth < 2; ++depth) {
      const LossSums own = depth < sums.predictions.size() ? sums.predictions[depth] : LossSums{};
      losses.insert(losses.end(), {own.loss, own.tokens});
    }
    losses = parallel_.losses.reduce_values(losses, comm::ReduceOp::kSum, {"test"});
    numbers.insert(numbers.end(), losses.begin(), losses.end());
    if (config_.model.calculate_per_token_loss) optimizer_->scale_gradients(1 / losses[1]);
    const Routing routing = routers_->finish_step();
    for (const auto& [name, value] : routing.losses) numbers.push_back(value);
    for (const RoutedLayer& layer : routing.layers) {
      numbers.insert(numbers.end(), {static_cast<double>(layer.number), layer.load.max_over_mean, layer.load.entropy});
      for (const auto& [name, value] : layer.losses) numbers.push_back(value);
    }
    numbers.push_back(optimizer_->step(1e-2, 0.1).grad_norm);
  }

  config::RunConfig config_;
  Parallel parallel_;
  std::vector<std::unique_ptr<model::Transformer>> chunks_;
  std::vector<model::Transformer*> passed_;
  optim::ModelChunks parameters_;
  std::unique_ptr<ForwardBackward> passes_;
  std::unique_ptr<RouterWatch> routers_;
  std::unique_ptr<optim::DataParallel> optimizer_;
};

class TrainExperts : public ::testing::TestWithParam<Layout> {};

TEST_P(TrainExperts, EqualOneRank) {
  for (const bool per_token : {false, true}) {
    SCOPED_TRACE(per_token ? "loss per token" : "loss per microbatch");
    Outcome expected;
    comm::testing::run_ranks(1, [&](comm::World& world) { expected = RankRun(world, {"one", 1, {}}, per_token).go(); });
    // 6 sums of losses, 3 auxiliary losses, 4 layers of 3 numbers and 3 losses, a norm; for each step, and a norm.
    ASSERT_EQ(expected.numbers.size(), static_cast<std::size_t>(kSteps * (6 + 3 + 4 * 6 + 1) + 1));
    EXPECT_EQ(expected.biases.size(), 4u);
    std::int64_t num_moved = 0;  // some move back
    for (const auto& [name, bias] : expected.biases) num_moved += bias.count_nonzero().item<std::int64_t>();
    EXPECT_GE(num_moved, 4);
    comm::testing::run_ranks(GetParam().num_ranks, [&](comm::World& world) {
      const Outcome actual = RankRun(world, GetParam(), per_token).go();
      EXPECT_EQ(actual.numbers.size(), expected.numbers.size());
      for (std::size_t i = 0; i < std::min(actual.numbers.size(), expected.numbers.size()); ++i)
        EXPECT_NEAR(actual.numbers[i], expected.numbers[i], 2e-5 * std::abs(expected.numbers[i])) << i;
      for (const auto& [name, bias] : actual.biases) EXPECT_TRUE(at::equal(bias, expected.biases.at(name))) << name;
    });
  }
}

using config::ShardingStrategy;
INSTANTIATE_TEST_SUITE_P(
    All, TrainExperts,
    ::testing::Values(
        Layout{"dp2", 2, {}, ShardingStrategy::kOptim},
        Layout{"dp4_ep2", 4, {.expert = 2}, ShardingStrategy::kOptimGradsParams},
        Layout{"tp2_ep2", 2, {.tensor = 2, .expert = 2, .expert_tensor = 1}},
        Layout{"tp2_etp2_dp2", 4, {.tensor = 2, .expert = 1, .expert_tensor = 2}, ShardingStrategy::kOptimGrads},
        Layout{"cp2_ep2_dp2", 4, {.context = 2, .expert = 2}, ShardingStrategy::kOptim},
        Layout{"pp2_ep2", 4, {.pipeline = 2, .expert = 2}, ShardingStrategy::kOptimGrads}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace pharos::train
