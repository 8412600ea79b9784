// What distinguishes the strategies: skipped steps, memory, continuation from fragments, sums over tensor ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

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

std::vector<at::Tensor> everything(const TestModel& model, DataParallel& parallel) {
  std::vector<at::Tensor> tensors = model.values();
  parallel.for_each_state([&](std::size_t, std::string_view, const at::Tensor& tensor, std::int64_t) {
    tensors.push_back(tensor.clone());
  });
  return tensors;
}

/// A model on one of the data-parallel ranks of `world`.
struct Rank {
  Rank(comm::World& world, const DataParallelOptions& options, at::ScalarType dtype,
       const OptimizerOptions& optimizer = {})
      : mesh(world.size(), {}),
        number(world.rank()),
        model(dtype),
        parallel({model.all()}, parallel_groups(world, mesh, model.all()), mesh, number, options, optimizer) {}

  StepResult step(int step, double bad = 0) {
    parallel.begin_step(2);
    parallel.begin_pass();
    model.run_microbatch(step, 0, number);
    parallel.begin_pass();
    if (bad != 0) {
      const at::NoGradGuard no_grad;
      // The gradient of the second use of the first parameter comes with the next microbatch's.
      tensor::add_gradient(model[3], [&](at::Tensor main_grad) { main_grad[4] = bad; });
      for (std::size_t index : {6, 5, 4, 2, 1, 0, 0}) {
        tensor::add_gradient(model[index], [](at::Tensor main_grad) { main_grad.add_(1); });
      }
    } else {
      model.run_microbatch(step, 1, number);
    }
    parallel.finish_gradients();
    return parallel.step(1e-2, 0.1);
  }

  comm::Mesh mesh;
  std::int64_t number;
  TestModel model;
  DataParallel parallel;
};

// An infinity on rank 1 only: no rank updates, the loss scale falls everywhere, everything stays bitwise; the one that
// holds the broken gradient names it. The next step is a good one again.
TEST(DataParallelStep, IsSkippedOnAllRanksOrNone) {
  for (const auto strategy : kStrategies) {
    for (const bool overlaps : {false, true}) {
      std::mutex mutex;
      std::vector<std::string> names;
      comm::testing::run_ranks(3, [&](comm::World& world) {
        OptimizerOptions optimizer;
        optimizer.loss_scaler = LossScaler(DynamicLossScale{.initial_scale = 64, .hysteresis = 1});
        Rank rank(world, {.strategy = strategy, .overlap_grad_reduce = overlaps, .overlap_param_gather = overlaps},
                  at::kFloat, optimizer);
        EXPECT_TRUE(rank.step(0).update_successful);
        const auto before = everything(rank.model, rank.parallel);
        const StepResult result = rank.step(1, world.rank() == 1 ? std::numeric_limits<double>::infinity() : 1e-3);
        EXPECT_FALSE(result.update_successful);
        EXPECT_FALSE(std::isfinite(result.grad_norm));
        EXPECT_EQ(rank.parallel.loss_scale(), 32);
        {
          const std::lock_guard lock(mutex);
          for (const auto& name : rank.parallel.non_finite_parameters()) names.push_back(name);
        }
        const auto after = everything(rank.model, rank.parallel);
        EXPECT_EQ(before.size(), after.size());
        for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i])) << i;
        EXPECT_TRUE(rank.step(2).update_successful);
      });
      EXPECT_THAT(names, ::testing::SizeIs(strategy == ShardingStrategy::kNoShard ? 3 : 1));
      EXPECT_THAT(names, ::testing::Each("decoder.layers.0.fc.bias"));
    }
  }
}

/// Bytes behind the data of all parameters, each storage once.
std::int64_t bytes_behind_data(const TestModel& model) {
  std::set<const void*> seen;
  std::int64_t bytes = 0;
  for (const auto* parameter : model.all()) {
    if (parameter->data.is_meta()) continue;
    const auto& storage = parameter->data.storage();
    if (seen.insert(storage.unsafeGetStorageImpl()).second) bytes += static_cast<std::int64_t>(storage.nbytes());
  }
  return bytes;
}

// optim_grads_params: the values of one unit are here, with prefetching those of two; others are meta tensors, even
// while a graph holds the tensors that were used. After settle_values() only the shard is left.
TEST(DataParallelMemory, HoldsTwoUnitsAtMost) {
  comm::testing::run_ranks(2, [](comm::World& world) {
    for (const bool prefetches : {false, true}) {
      Rank rank(world, {.strategy = ShardingStrategy::kOptimGradsParams, .overlap_param_gather = prefetches},
                at::kFloat);
      const FlatLayout& layout = rank.parallel.layout();
      std::vector<std::int64_t> unit_bytes;
      for (const Bucket& bucket : layout.buckets) unit_bytes.push_back((bucket.end - bucket.begin) * 4);
      std::sort(unit_bytes.rbegin(), unit_bytes.rend());
      const std::int64_t shard_bytes = layout.num_elements * 4 / 2;
      const std::int64_t limit = shard_bytes + unit_bytes[0] + (prefetches ? unit_bytes[1] : 0);
      EXPECT_EQ(rank.parallel.resident_value_bytes(), shard_bytes);
      std::vector<at::Tensor> kept;
      std::int64_t most = 0;
      for (int step = 0; step < 2; ++step) {
        rank.parallel.begin_step(1);
        for (const bool forward : {true, false}) {
          for (std::size_t i = 0; i < rank.model.size(); ++i) {
            auto& parameter = rank.model[forward ? i : rank.model.size() - 1 - i];
            kept.push_back(tensor::value(parameter));
            EXPECT_TRUE(parameter.data.requires_grad());
            EXPECT_TRUE(parameter.data.is_leaf());
            EXPECT_LE(bytes_behind_data(rank.model), unit_bytes[0]);
            EXPECT_LE(rank.parallel.resident_value_bytes(), limit);
            most = std::max(most, rank.parallel.resident_value_bytes());
          }
        }
        rank.parallel.begin_pass();
        rank.model.run_microbatch(step, 0, world.rank());
        rank.parallel.finish_gradients();
        EXPECT_TRUE(rank.parallel.step(1e-2, 0).update_successful);
      }
      EXPECT_EQ(most, limit);  // the two largest units are neighbours
      rank.parallel.settle_values();
      EXPECT_EQ(rank.parallel.resident_value_bytes(), shard_bytes);
      for (const auto* parameter : rank.model.all()) {
        EXPECT_TRUE(parameter->data.is_meta() && parameter->data.requires_grad());
      }
      for (const at::Tensor& tensor : kept) EXPECT_EQ(tensor.storage().nbytes(), 0u);
      for (const auto* parameter : rank.model.all()) EXPECT_FALSE(parameter->main_grad.defined());
    }
  });
}

// Values and states copied fragment by fragment into a new run continue bitwise, also through main parameters only.
TEST(DataParallelState, ContinuesBitwise) {
  for (const auto strategy : kStrategies) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      comm::testing::run_ranks(2, [&](comm::World& world) {
        const DataParallelOptions options{.strategy = strategy, .overlap_param_gather = true};
        Rank one(world, options, dtype), two(world, options, dtype);
        for (int step = 0; step < 3; ++step) one.step(step);
        std::map<std::pair<std::size_t, std::string>, at::Tensor> saved;
        one.parallel.for_each_value([&](std::size_t index, const at::Tensor& values, std::int64_t) {
          saved[{index, ""}] = values.clone();
        });
        one.parallel.for_each_state(
            [&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
              saved[{index, std::string(name)}] = tensor.clone();
            });
        if (dtype == at::kFloat) {
          two.parallel.for_each_value([&](std::size_t index, const at::Tensor& values, std::int64_t) {
            values.copy_(saved.at({index, ""}));
          });
        }
        two.parallel.for_each_state(
            [&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
              tensor.copy_(saved.at({index, std::string(name)}));
            });
        two.parallel.restore_scalars(nlohmann::json::parse(one.parallel.save_scalars().dump()));
        two.parallel.copy_main_to_data();
        for (int step = 3; step < 5; ++step) {
          one.step(step);
          two.step(step);
        }
        const auto expected = everything(one.model, one.parallel), actual = everything(two.model, two.parallel);
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(expected[i], actual[i])) << i;
      });
    }
  }
}

// With overlap a bucket's reduction starts with the last gradient of its last parameter in the last microbatch, in the
// order of buckets; without it none starts before start_remaining(). The sum is the same.
TEST(DataParallelGradients, AreReducedAsSoonAsTheyAreComplete) {
  for (const bool overlaps : {false, true}) {
    comm::testing::run_ranks(2, [&](comm::World& world) {
      const TestModel model(at::kFloat);
      const DataParallelOptions options{.overlap_grad_reduce = overlaps, .bucket_size = 300};
      const FlatLayout layout = data_parallel_layout({model.all()}, options, 2);  // buckets (6, 5), (4, 3, 2), (1, 0)
      FullGradientSync gradients(model.all(), layout, whole_range(layout),
                                 BucketReducer(&world.all(), options, at::kFloat), overlaps);
      const std::size_t num_started[] = {3, 2, 2, 1, 1, 1, 0};  // [parameter] once its last gradient is there
      gradients.begin_step(2);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        gradients.after_gradient(0);
        for (std::size_t index : {6, 5, 3, 4, 2, 1, 0}) {
          model[index].main_grad.add_(1);
          gradients.after_gradient(index);
          EXPECT_EQ(gradients.num_started(), overlaps && microbatch == 1 ? num_started[index] : 0u) << index;
        }
      }
      gradients.start_remaining();
      EXPECT_EQ(gradients.num_started(), 3u);
      gradients.finish();
      for (const auto* parameter : model.all()) EXPECT_TRUE(parameter->main_grad.eq(4).all().item<bool>());
      if (overlaps) {
        EXPECT_THROW(gradients.after_gradient(3), base::InternalError);
      }
    });
  }
}

// Where a gradient never comes, in one microbatch or on one rank, the others' still do.
TEST(DataParallelGradients, MayBeMissing) {
  for (const auto strategy : kStrategies) {
    for (const bool overlaps : {false, true}) {
      comm::testing::run_ranks(2, [&](comm::World& world) {
        OptimizerOptions optimizer;
        optimizer.kind = OptimizerOptions::Kind::kSgd;
        optimizer.clip_grad = 0;
        Rank rank(world, {.strategy = strategy, .overlap_grad_reduce = overlaps, .averages = false}, at::kFloat,
                  optimizer);
        const auto before = rank.model.values();
        rank.parallel.begin_step(2);
        const at::NoGradGuard no_grad;
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          rank.parallel.begin_pass();
          for (std::size_t index = rank.model.size(); index-- > 0;) {
            if (index == 5 || (index == 2 && world.rank() == 0) || (index == 4 && microbatch == 0)) continue;
            tensor::add_gradient(rank.model[index], [](at::Tensor main_grad) { main_grad.add_(1); });
          }
        }
        rank.parallel.finish_gradients();
        EXPECT_TRUE(rank.parallel.step(0.25, 0).update_successful);
        const double gradients[] = {4, 4, 2, 4, 2, 0, 4};
        const auto after = rank.model.values();
        for (std::size_t i = 0; i < after.size(); ++i) {
          EXPECT_TRUE(at::equal(after[i], before[i] - 0.25 * gradients[i])) << i;
        }
      });
    }
  }
}

/// Parameters of one rank; k has fewer heads than there are tensor-parallel ranks, so that two hold the same.
struct SplitModel {
  SplitModel(const comm::Mesh& mesh, std::int64_t rank) {
    const auto split = [](int replicas) { return std::vector<tensor::Split>{{0, comm::MeshDim::kTensor, replicas}}; };
    const int replicas = mesh.size(comm::MeshDim::kTensor) > 1 ? 2 : 1;
    declare("decoder.layers.0.norm", {{"norm", {37}, {}, tensor::Init::constant(1)}}, mesh, rank);
    declare(
        "decoder.layers.0.qkv",
        {{"q", {8, 11}, split(1), tensor::Init::normal(1)}, {"k", {4, 11}, split(replicas), tensor::Init::normal(1)}},
        mesh, rank);
    declare("decoder.layers.1.bias", {{"bias", {9}, {}, tensor::Init::normal(1)}}, mesh, rank);
    parameters[0].sum_gradient_over_tensor = true;
  }

  void declare(const std::string& name, std::vector<tensor::Piece> pieces, const comm::Mesh& mesh, std::int64_t rank) {
    tensor::Parameter& parameter = parameters[num_declared++];
    parameter.name = name;
    parameter.pieces = std::move(pieces);
    tensor::declare(parameter, at::kFloat, mesh, rank);
    tensor::materialize(parameter, at::kCPU, 7, mesh, rank);
  }

  std::vector<tensor::Parameter*> all() { return {&parameters[0], &parameters[1], &parameters[2]}; }

  tensor::Parameter parameters[3];
  std::size_t num_declared = 0;
};

struct TensorCase {
  std::int64_t tensor, data;
  ShardingStrategy strategy;
};

class DataParallelTensor : public ::testing::TestWithParam<TensorCase> {};

// Rank (t, d) has the gradient 1 + t + 10·d for norm (held by all tensor ranks) and k (by two neighbours), and the same
// on all t, 1 + 10·d, for q and bias. Averaged over d, 10·d is a = 5·(data - 1); norm and k are summed over their
// holders. Every element counts once in the norms.
TEST_P(DataParallelTensor, SumsSharedGradientsAndCountsThemOnce) {
  const auto [tensor_size, data_size, strategy] = GetParam();
  comm::testing::run_ranks(4, [&](comm::World& world) {
    const comm::Mesh mesh(4, {.tensor = tensor_size});
    SplitModel model(mesh, world.rank());
    const auto t = static_cast<double>(mesh.coordinate(world.rank(), comm::MeshDim::kTensor));
    const auto d = static_cast<double>(mesh.coordinate(world.rank(), comm::MeshDim::kData));
    OptimizerOptions optimizer;
    optimizer.kind = OptimizerOptions::Kind::kSgd;
    optimizer.clip_grad = 0;
    optimizer.count_zeros = true;
    DataParallel parallel({model.all()}, parallel_groups(world, mesh, model.all()), mesh, world.rank(),
                          {.strategy = strategy, .overlap_grad_reduce = true}, optimizer);
    std::vector<at::Tensor> before;
    for (auto* parameter : model.all()) before.push_back(tensor::value(*parameter).detach().clone());
    const std::int64_t rows_q = 8 / tensor_size, rows_k = 4 * 2 / tensor_size;
    parallel.begin_step(1);
    parallel.begin_pass();
    const at::NoGradGuard no_grad;
    for (std::size_t index : {2, 1, 0}) {
      tensor::add_gradient(model.parameters[index], [&](at::Tensor main_grad) {
        main_grad.add_(index == 0 ? 1 + t + 10 * d : 1 + 10 * d);
        if (index == 1) main_grad.narrow(0, rows_q, rows_k).add_(t);
      });
    }
    parallel.finish_gradients();
    const double params_norm = parallel.params_norm();
    const StepResult result = parallel.step(0.5, 0);

    const auto size = static_cast<double>(tensor_size);
    const double a = 5.0 * static_cast<double>(data_size - 1);
    const double norm = size * (size + 1) / 2 + size * a;
    const auto k_of = [&](double first) { return 2 * first + 3 + 2 * a; };  // (1 + first) + (2 + first)
    at::Tensor qkv = at::full({rows_q + rows_k, 11}, 1 + a);
    qkv.narrow(0, rows_q, rows_k).fill_(k_of(t - std::fmod(t, 2)));
    const at::Tensor gradients[] = {at::full({37}, norm), qkv, at::full({9}, 1 + a)};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(tensor::value(model.parameters[i]), before[i] - 0.5 * gradients[i])) << i;
    }
    double squares = 37 * norm * norm + (88 + 9) * (1 + a) * (1 + a);
    for (double first = 0; first < size; first += 2) squares += 44 * 2 / size * k_of(first) * k_of(first);
    EXPECT_NEAR(result.grad_norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
    EXPECT_EQ(result.num_zeros, 0);

    const comm::Mesh alone(1, {});
    SplitModel whole(alone, 0);
    DataParallel single({whole.all()}, {}, alone, 0, {}, optimizer);
    EXPECT_NEAR(params_norm, single.params_norm(), 1e-6 * params_norm);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, DataParallelTensor,
                         ::testing::Values(TensorCase{2, 2, ShardingStrategy::kNoShard},
                                           TensorCase{2, 2, ShardingStrategy::kOptim},
                                           TensorCase{2, 2, ShardingStrategy::kOptimGrads},
                                           TensorCase{2, 2, ShardingStrategy::kOptimGradsParams},
                                           TensorCase{4, 1, ShardingStrategy::kOptim}),
                         [](const auto& tested) {
                           return "tp" + std::to_string(tested.param.tensor) + "_" +
                                  config::enum_name(tested.param.strategy);
                         });

}  // namespace
}  // namespace pharos::optim
