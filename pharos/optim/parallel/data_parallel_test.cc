#include "pharos/optim/parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "pharos/comm/testing.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/optim/parallel/test_model.h"

namespace pharos::optim {
namespace {

using config::ShardingStrategy;

constexpr int kSteps = 5, kMicrobatches = 3;
constexpr double kLearningRate = 1e-2, kWeightDecay = 0.1;
constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kNoShard, ShardingStrategy::kOptim,
                                            ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams};

struct Case {
  DataParallelOptions parallel;
  at::ScalarType dtype = at::kFloat;
  OptimizerOptions optimizer;

  std::string describe(std::int64_t num_ranks) const {
    return std::to_string(num_ranks) + " ranks, " + config::enum_name(parallel.strategy) +
           (parallel.overlap_grad_reduce ? ", overlap" : "") + (parallel.averages ? "" : ", sum") + ", " +
           c10::toString(dtype) + (optimizer.kind == OptimizerOptions::Kind::kSgd ? ", sgd" : ", adam") +
           (optimizer.clip_grad > 0 ? ", clipped" : "");
  }
};

/// A run's numbers that must not depend on the layout.
struct Outcome {
  std::vector<at::Tensor> values;
  std::map<std::pair<std::size_t, std::string>, at::Tensor> states;  ///< whole, flat
  std::vector<double> norms;
  std::vector<std::int64_t> zeros;
  double params_norm = 0;
};

/// One rank that gets the gradients of all, summed.
Outcome run_alone(const Case& c, std::int64_t num_ranks) {
  const TestModel model(c.dtype);
  DataParallelOptions options = c.parallel;
  options.averages = false;
  DataParallel alone({model.all()}, {}, comm::Mesh(1, {}), 0, options, c.optimizer);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    alone.begin_step(kMicrobatches);
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) model.run_microbatch(step, microbatch, rank);
    }
    alone.finish_gradients();
    if (c.parallel.averages) alone.scale_gradients(1.0 / static_cast<double>(num_ranks));
    const StepResult result = alone.step(kLearningRate, kWeightDecay);
    EXPECT_TRUE(result.update_successful);
    outcome.norms.push_back(result.grad_norm);
    outcome.zeros.push_back(result.num_zeros.value());
  }
  outcome.values = model.values();
  outcome.params_norm = alone.params_norm();
  alone.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t first) {
    EXPECT_EQ(first, 0);
    outcome.states[{index, std::string(name)}] = tensor.reshape(-1).clone();
  });
  return outcome;
}

/// Fragments of all ranks' states, put together: value and number of holders of each element.
class Assembly {
 public:
  void add(const TestModel& model, bool is_whole, std::size_t index, std::string_view name, const at::Tensor& tensor,
           std::int64_t first) {
    const std::lock_guard lock(mutex_);
    auto& [values, holders] = tensors_[{index, std::string(name)}];
    if (!values.defined()) {
      values = at::zeros({model[index].data.numel()}, at::kFloat);
      holders = at::zeros({model[index].data.numel()}, at::kInt);
    }
    EXPECT_EQ(tensor.dim(), is_whole ? model[index].data.dim() : 1);
    EXPECT_TRUE(!is_whole || tensor.numel() == values.numel());
    values.narrow(0, first, tensor.numel()).copy_(tensor.detach().reshape(-1));
    holders.narrow(0, first, tensor.numel()).add_(1);
  }

  void expect(const Outcome& reference, int num_holders, double tolerance) const {
    EXPECT_EQ(tensors_.size(), reference.states.size());
    for (const auto& [key, expected] : reference.states) {
      const auto& [values, holders] = tensors_.at(key);
      EXPECT_TRUE(holders.eq(num_holders).all().item<bool>()) << key.first << key.second << "\n" << holders;
      EXPECT_LE((values - expected).abs().max().item<double>(), tolerance) << key.first << " " << key.second;
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::string>, std::pair<at::Tensor, at::Tensor>> tensors_;
};

void expect_equal(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& expected, double tolerance) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(values[i], expected[i])) << i;
    } else {
      EXPECT_LE((values[i].to(at::kFloat) - expected[i].to(at::kFloat)).abs().max().item<double>(), tolerance) << i;
    }
  }
}

void train(const Case& c, comm::World& world, const Outcome& reference, Assembly& assembly, double tolerance) {
  SCOPED_TRACE(c.describe(world.size()) + ", rank " + std::to_string(world.rank()));
  const comm::Mesh mesh(world.size(), {});
  const TestModel model(c.dtype);
  DataParallel parallel({model.all()}, parallel_groups(world, mesh, model.all()), mesh, world.rank(), c.parallel,
                        c.optimizer);
  for (int step = 0; step < kSteps; ++step) {
    parallel.begin_step(kMicrobatches);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      parallel.begin_pass();
      model.run_microbatch(step, microbatch, world.rank());
    }
    parallel.finish_gradients();
    const StepResult result = parallel.step(kLearningRate, kWeightDecay);
    EXPECT_TRUE(result.update_successful);
    EXPECT_NEAR(result.grad_norm, reference.norms[step], 1e-6 * reference.norms[step]);
    EXPECT_EQ(result.num_zeros, reference.zeros[step]);
    // The same bits everywhere.
    const double largest = world.all().reduce_value(result.grad_norm, comm::ReduceOp::kMax, {"test"});
    EXPECT_EQ(result.grad_norm, largest);
  }
  expect_equal(model.values(), reference.values, tolerance);
  EXPECT_NEAR(parallel.params_norm(), reference.params_norm, 1e-6 * reference.params_norm);
  parallel.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t first) {
    assembly.add(model, parallel.holds_whole_states(), index, name, tensor, first);
  });
}

/// Averages of three gradients are not exact: summed over the microbatches they would differ from the average of sums.
std::vector<Case> cases(ShardingStrategy strategy, int num_ranks) {
  std::vector<Case> all;
  for (const bool overlaps : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto kind : {OptimizerOptions::Kind::kAdamW, OptimizerOptions::Kind::kSgd}) {
        Case c;
        c.parallel.strategy = strategy;
        c.parallel.overlap_grad_reduce = c.parallel.overlap_param_gather = overlaps;
        c.parallel.averages = kind == OptimizerOptions::Kind::kAdamW;
        c.parallel.reduce_in_fp32 = kind == OptimizerOptions::Kind::kAdamW;
        c.parallel.average_in_collective = overlaps && num_ranks != 3;
        if (overlaps && dtype == at::kFloat) c.parallel.bucket_size = 200;
        c.dtype = dtype;
        c.optimizer.kind = kind;
        c.optimizer.count_zeros = true;
        c.optimizer.clip_grad = 0;
        all.push_back(c);
        if (dtype != at::kFloat) continue;
        c.optimizer.clip_grad = 1;
        all.push_back(c);
      }
    }
  }
  return all;
}

class DataParallelRanks : public ::testing::TestWithParam<std::tuple<int, ShardingStrategy>> {};

// Values, states, norms and zeros of every strategy are those of one rank with all gradients. Gradient sums are exact,
// so values are bitwise equal; but for a clipped step: its norm is summed in another order, 1e-6 covers it.
TEST_P(DataParallelRanks, EqualOneRank) {
  const auto [num_ranks, strategy] = GetParam();
  const auto all = cases(strategy, num_ranks);
  std::vector<Outcome> references;
  std::vector<Assembly> assemblies(all.size());
  for (const Case& c : all) references.push_back(run_alone(c, num_ranks));
  const auto tolerance = [&](const Case& c) { return c.optimizer.clip_grad > 0 ? 1e-6 : 0; };
  comm::testing::run_ranks(num_ranks, [&](comm::World& world) {
    for (std::size_t i = 0; i < all.size(); ++i) train(all[i], world, references[i], assemblies[i], tolerance(all[i]));
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].describe(num_ranks));
    assemblies[i].expect(references[i], shards_states(strategy) ? 1 : num_ranks, tolerance(all[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DataParallelRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kStrategies)),
                         [](const auto& tested) {
                           return config::enum_name(std::get<1>(tested.param)) + "_on_" +
                                  std::to_string(std::get<0>(tested.param));
                         });

}  // namespace
}  // namespace pharos::optim
