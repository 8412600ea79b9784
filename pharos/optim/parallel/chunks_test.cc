// Two model chunks of a rank whose microbatches alternate, with weight gradients apart or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/comm/testing.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/optim/parallel/test_model.h"

namespace pharos::optim {
namespace {

using config::ShardingStrategy;

constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kNoShard, ShardingStrategy::kOptim,
                                            ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams};
constexpr int kSteps = 2;
constexpr int kMicrobatches = 3;
constexpr std::size_t kFirstOfChunk1 = 4;
/// Forward, backward and weight pass as kind, chunk and microbatch. A step without W has its weight gradients in B.
constexpr const char* kOrders[] = {
    "F00 F10 B10 B00 F01 F11 B11 B01 F02 F12 B12 B02",
    "F00 F01 F10 F11 B10 F02 B11 B00 F12 B01 B12 B02",
    // Norms of later microbatches before the weights of earlier ones.
    "F00 F01 F02 F10 F11 B10 B11 F12 B00 W10 B12 B01 W00 W11 B02 W12 W01 W02",
    // Chunk 1, which uses the words too, has the last weight pass.
    "F00 F01 F10 F11 B10 W10 B00 F02 F12 B11 B12 B01 B02 W00 W01 W02 W11 W12",
};

/// Whether the gradient comes with that of the inputs.
bool is_early(const tensor::Parameter& parameter) {
  return parameter.name.ends_with("norm.weight") || parameter.name.ends_with("bias");
}

/// Gradients that never come: that of parameter 5, and that of 4 in the first microbatch; or on rank 0 also that of 2.
enum class Gaps : std::uint8_t { kNone, kAlike, kOnOneRank };

class Pipelined {
 public:
  Pipelined(const TestModel& model, std::int64_t rank, Gaps gaps) : model_(model), rank_(rank), gaps_(gaps) {}

  void run(const std::string& order, int step, DataParallel* parallel) {
    const bool is_split = order.find('W') != std::string::npos;
    for (std::size_t at = 0; at < order.size(); at += 4) {
      const char kind = order[at];
      const auto chunk = static_cast<std::size_t>(order[at + 1] - '0');
      const int microbatch = order[at + 2] - '0';
      if (parallel != nullptr && kind == (is_split ? 'W' : 'B')) parallel->begin_pass(chunk);
      std::vector<std::size_t> parameters;
      for (std::size_t i = chunk * kFirstOfChunk1; i < (chunk == 0 ? kFirstOfChunk1 : model_.size()); ++i)
        parameters.push_back(i);
      if (chunk == 1) parameters.push_back(0);  // the output layer has the words of the embedding
      if (kind != 'F') std::reverse(parameters.begin(), parameters.end());
      for (const std::size_t index : parameters) {
        if (kind != 'W') tensor::value(model_[index]);
        if (kind == 'F' || (is_split && is_early(model_[index]) != (kind == 'B'))) continue;
        add(index, step, microbatch, chunk == 1 && index == 0 ? 1 : 0);
      }
    }
  }

 private:
  void add(std::size_t index, int step, int microbatch, int use) {
    const at::NoGradGuard no_grad;
    if (gaps_ != Gaps::kNone && (index == 5 || (index == 4 && microbatch == 0))) return;
    if (gaps_ == Gaps::kOnOneRank && index == 2 && rank_ == 0) return;
    tensor::add_gradient(model_[index], [&](at::Tensor main_grad) {
      main_grad.add_(model_.gradient(index, step, microbatch, rank_, use));
    });
  }

  const TestModel& model_;
  std::int64_t rank_;
  Gaps gaps_;
};

OptimizerOptions optimizer_options() {
  OptimizerOptions options;
  options.clip_grad = 0;
  return options;
}

/// One rank that gets the gradients of all, summed.
std::vector<at::Tensor> run_alone(std::int64_t num_ranks, Gaps gaps) {
  const TestModel model(at::kFloat);
  DataParallel alone({model.all()}, {}, comm::Mesh(1, {}), 0, {.averages = false}, optimizer_options());
  for (int step = 0; step < kSteps; ++step) {
    alone.begin_step(kMicrobatches);
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) Pipelined(model, rank, gaps).run(kOrders[0], step, nullptr);
    alone.finish_gradients();
    EXPECT_TRUE(alone.step(1e-2, 0.1).update_successful);
  }
  return model.values();
}

class DataParallelChunks : public ::testing::TestWithParam<Gaps> {};

// Gradients are exact, hence values bitwise those of one rank, in any order of passes and with gradients that never
// come, on all ranks or on one (but where gathered values share the group with the reductions).
TEST_P(DataParallelChunks, EqualOneRankInAnyOrder) {
  const Gaps gaps = GetParam();
  const auto expected = run_alone(2, gaps);
  comm::testing::run_ranks(2, [&](comm::World& world) {
    for (const auto strategy : kStrategies) {
      if (shards_values(strategy) && gaps == Gaps::kOnOneRank) continue;
      for (const bool overlaps : {false, true}) {
        for (const char* order : kOrders) {
          SCOPED_TRACE(config::enum_name(strategy) + (overlaps ? ", overlap, " : ", ") + order);
          const comm::Mesh mesh(2, {});
          const TestModel model(at::kFloat);
          const auto all = model.all();
          DataParallel parallel(
              {{all.begin(), all.begin() + kFirstOfChunk1}, {all.begin() + kFirstOfChunk1, all.end()}},
              parallel_groups(world, mesh, all), mesh, world.rank(),
              {.strategy = strategy,
               .overlap_grad_reduce = overlaps,
               .overlap_param_gather = overlaps,
               .averages = false},
              optimizer_options());
          for (int step = 0; step < kSteps; ++step) {
            parallel.begin_step(kMicrobatches);
            Pipelined(model, world.rank(), gaps).run(order, step, &parallel);
            parallel.finish_gradients();
            EXPECT_TRUE(parallel.step(1e-2, 0.1).update_successful);
          }
          const auto actual = model.values();
          for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, DataParallelChunks, ::testing::Values(Gaps::kNone, Gaps::kAlike, Gaps::kOnOneRank),
                         [](const auto& tested) {
                           if (tested.param == Gaps::kNone) return "complete";
                           return tested.param == Gaps::kAlike ? "gaps" : "gaps_on_one_rank";
                         });

// A gradient whose chunk has no pass afterwards would never be reduced.
TEST(DataParallelPasses, GradientsOutsideOfPassesAreRefused) {
  comm::testing::run_ranks(2, [](comm::World& world) {
    const comm::Mesh mesh(2, {});
    const TestModel model(at::kFloat);
    DataParallel parallel({model.all()}, parallel_groups(world, mesh, model.all()), mesh, world.rank(),
                          {.strategy = ShardingStrategy::kOptimGrads}, optimizer_options());
    parallel.begin_step(1);
    model.run_microbatch(0, 0, world.rank());
    EXPECT_THROW(parallel.finish_gradients(), base::InternalError);
  });
}

// Units and buckets end where chunks do, whatever the names of the parameters there.
TEST(DataParallelPasses, ShareNoBucket) {
  const TestModel model(at::kFloat);
  const auto all = model.all();
  const ModelChunks chunks{{all.begin(), all.begin() + 3}, {}, {all.begin() + 3, all.end()}};
  for (const auto strategy : kStrategies) {
    for (const Bucket& bucket : data_parallel_layout(chunks, {.strategy = strategy}, 2).buckets) {
      EXPECT_EQ(bucket.parameters.front() < 3, bucket.parameters.back() < 3) << config::enum_name(strategy);
    }
  }
}

}  // namespace
}  // namespace pharos::optim
