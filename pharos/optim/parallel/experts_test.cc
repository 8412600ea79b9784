// Experts beside other parameters: every layout and strategy trains like one rank that sees all tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "pharos/comm/testing.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/optim/parallel/test_model.h"

namespace pharos::optim {
namespace {

using comm::MeshDim;
using config::ShardingStrategy;

constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kNoShard, ShardingStrategy::kOptim,
                                            ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams};
constexpr int kSteps = 2, kMicrobatches = 2;
constexpr std::size_t kBuffer = 4;  ///< the parameter that is none

/// Two layers of which the first has experts, and what surrounds them.
class ExpertModel {
 public:
  ExpertModel(const comm::Mesh& mesh, std::int64_t rank) : mesh_(mesh), rank_(rank) {
    const tensor::Split heads{0, MeshDim::kTensor}, experts{0, MeshDim::kExpert};
    add("embedding.words", {{11, 7}}, {});
    add("decoder.layers.0.norm", {{7}}, {});
    add("decoder.layers.0.proj", {{8, 5}}, {heads});
    add("decoder.layers.0.router", {{4, 7}}, {});
    add("decoder.layers.0.expert_bias", {{4}}, {});
    add("decoder.layers.0.experts.fc1", {{4, 6, 5}, {4, 6, 5}}, {experts, {1, MeshDim::kExpertTensor}}, 1);
    add("decoder.layers.0.experts.fc2", {{4, 5, 6}}, {experts, {2, MeshDim::kExpertTensor}}, 1);
    add("decoder.layers.0.experts.fc2_bias", {{4, 3}}, {experts}, 1);
    add("decoder.layers.0.shared", {{9, 3}}, {});
    add("decoder.layers.1.proj", {{13}}, {});
    parameters_[kBuffer]->trainable = false;
  }

  std::vector<tensor::Parameter*> all() const {
    std::vector<tensor::Parameter*> pointers;
    for (const auto& parameter : parameters_) pointers.push_back(parameter.get());
    return pointers;
  }

  /// The part of `whole`, shaped like parameter `index` on a single rank, that this rank has.
  at::Tensor own_part(std::size_t index, const at::Tensor& whole) const {
    const tensor::Parameter& parameter = *parameters_[index];
    std::vector<at::Tensor> parts;
    for (std::size_t i = 0; i < parameter.pieces.size(); ++i) {
      at::Tensor part = tensor::piece_view(parameter, whole, i, comm::Mesh(1, {}), 0);
      const tensor::Slice slice = tensor::local_slice(parameter.pieces[i], mesh_, rank_);
      for (std::size_t axis = 0; axis < slice.shape.size(); ++axis)
        part = part.narrow(static_cast<std::int64_t>(axis), slice.offset[axis], slice.shape[axis]);
      parts.push_back(part);
    }
    return at::cat(parts, parameter.axis);
  }

  /// A pass over the tokens of `sources`, one by one: data-parallel ranks whose gradients are known multiples of 1/8.
  void run_microbatch(int step, int microbatch, const std::vector<std::int64_t>& sources,
                      const std::vector<std::int64_t>& expert_sources) const {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters_) tensor::value(*parameter);
    for (std::size_t index = parameters_.size(); index-- > 0;) {
      tensor::Parameter& parameter = *parameters_[index];
      tensor::value(parameter);
      tensor::add_gradient(parameter, [&](at::Tensor main_grad) {
        for (const std::int64_t source : tensor::is_expert(parameter) ? expert_sources : sources)
          main_grad.add_(own_part(index, gradient(index, step, microbatch, source)));
      });
    }
  }

  /// Values as layers would see them.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : parameters_) copies.push_back(tensor::value(*parameter).detach().clone());
    return copies;
  }

 private:
  void add(const std::string& name, const std::vector<std::vector<std::int64_t>>& shapes,
           const std::vector<tensor::Split>& splits, int axis = 0) {
    auto parameter = std::make_unique<tensor::Parameter>();
    parameter->name = name;
    parameter->axis = axis;
    parameter->weight_decay = shapes.front().size() > 1;
    for (const auto& shape : shapes) {
      const std::string piece = name + std::to_string(parameter->pieces.size());
      parameter->pieces.push_back({piece, shape, splits, tensor::Init::normal(1)});
    }
    tensor::declare(*parameter, at::kFloat, mesh_, rank_);
    tensor::materialize(*parameter, at::kCPU, 7, mesh_, rank_);
    parameters_.push_back(std::move(parameter));
  }

  at::Tensor gradient(std::size_t index, int step, int microbatch, std::int64_t source) const {
    const auto seed = static_cast<std::uint64_t>(((static_cast<int>(index) * 10 + step) * 10 + microbatch) * 10) +
                      static_cast<std::uint64_t>(source);
    const auto shape = tensor::local_shape(*parameters_[index], comm::Mesh(1, {}), 0);
    return seeded_normal(shape, seed).mul(3).round().clamp(-10, 10).div(8);
  }

  const comm::Mesh mesh_;
  std::int64_t rank_;
  std::vector<std::unique_ptr<tensor::Parameter>> parameters_;
};

/// Gradients are exact and not clipped: values are those of one rank.
OptimizerOptions exact_optimizer() {
  OptimizerOptions options;
  options.clip_grad = 0;
  options.count_zeros = true;
  return options;
}

struct Outcome {
  std::vector<at::Tensor> values;
  std::map<std::pair<std::size_t, std::string>, at::Tensor> states;
  StepResult last;
  double params_norm = 0;
};

/// One rank that sees the tokens of `num_sources` data-parallel ranks.
Outcome run_alone(std::int64_t num_sources) {
  const comm::Mesh mesh(1, {});
  const ExpertModel model(mesh, 0);
  DataParallel alone({model.all()}, {}, mesh, 0, {}, exact_optimizer());
  Outcome outcome;
  std::vector<std::int64_t> sources;
  for (std::int64_t source = 0; source < num_sources; ++source) sources.push_back(source);
  for (int step = 0; step < kSteps; ++step) {
    alone.begin_step(kMicrobatches);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch)
      model.run_microbatch(step, microbatch, sources, sources);
    alone.finish_gradients();
    alone.scale_gradients(1.0 / static_cast<double>(num_sources));
    outcome.last = alone.step(1e-2, 0.1);
  }
  outcome.values = model.values();
  outcome.params_norm = alone.params_norm();
  alone.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t) {
    outcome.states[{index, std::string(name)}] = tensor.clone();
  });
  return outcome;
}

struct LayoutCase {
  const char* name;
  comm::ParallelSizes sizes;
};

/// Which of the data-parallel ranks' tokens this rank's own parameters and its experts see.
struct Sources {
  Sources(const comm::Mesh& mesh, std::int64_t rank) {
    const auto data = mesh.group(rank, {MeshDim::kData, MeshDim::kContext});
    count = static_cast<std::int64_t>(data.size());
    own = {std::find(data.begin(), data.end(), rank) - data.begin()};
    const std::int64_t copies = mesh.size(MeshDim::kExpertData);
    for (std::int64_t i = mesh.coordinate(rank, MeshDim::kExpertData); i < count; i += copies) experts.push_back(i);
  }
  std::int64_t count;
  std::vector<std::int64_t> own, experts;
};

void expect_states(DataParallel& parallel, const ExpertModel& model, const Outcome& reference) {
  std::set<std::size_t> visited;
  parallel.for_each_state([&](std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t first) {
    const at::Tensor expected = model.own_part(index, reference.states.at({index, std::string(name)})).reshape(-1);
    // Squares differ in their last bit where an element is at the end of a vector register's worth on one side only.
    EXPECT_TRUE(at::allclose(tensor.reshape(-1), expected.narrow(0, first, tensor.numel()), 1e-6, 1e-9))
        << index << name;
    EXPECT_EQ(tensor.numel() == expected.numel() && tensor.dim() == model.all()[index]->data.dim(),
              parallel.holds_whole_states() ||
                  (tensor.dim() == 1 && tensor.numel() == expected.numel() && model.all()[index]->data.dim() == 1));
    visited.insert(index);
  });
  EXPECT_EQ(visited.size(), model.all().size() - 1);
  EXPECT_FALSE(visited.contains(kBuffer));
  std::set<std::size_t> values;
  parallel.for_each_value([&](std::size_t index, const at::Tensor& tensor, std::int64_t first) {
    values.insert(index);
    const at::Tensor expected = model.own_part(index, reference.values[index]).reshape(-1);
    EXPECT_TRUE(at::equal(tensor.reshape(-1), expected.narrow(0, first, tensor.numel()))) << index;
    EXPECT_TRUE(!parallel.holds_whole_values(index) || tensor.sizes() == model.all()[index]->data.sizes()) << index;
  });
  EXPECT_EQ(values.size(), model.all().size());
}

void train(comm::World& world, const comm::ParallelSizes& sizes, const DataParallelOptions& options) {
  const comm::Mesh mesh(4, sizes);
  const Sources sources(mesh, world.rank());
  const Outcome reference = run_alone(sources.count);
  const ExpertModel model(mesh, world.rank());
  DataParallel parallel({model.all()}, parallel_groups(world, mesh, model.all()), mesh, world.rank(), options,
                        exact_optimizer());
  StepResult result;
  for (int step = 0; step < kSteps; ++step) {
    parallel.begin_step(kMicrobatches);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      parallel.begin_pass();
      model.run_microbatch(step, microbatch, sources.own, sources.experts);
    }
    parallel.finish_gradients();
    result = parallel.step(1e-2, 0.1);
    EXPECT_TRUE(result.update_successful);
  }
  EXPECT_NEAR(result.grad_norm, reference.last.grad_norm, 1e-6 * reference.last.grad_norm);
  EXPECT_EQ(result.num_zeros, reference.last.num_zeros);
  const double params_norm = parallel.params_norm();
  EXPECT_NEAR(params_norm, reference.params_norm, 1e-6 * reference.params_norm);
  // The same bits everywhere.
  EXPECT_EQ(world.all().reduce_value(result.grad_norm, comm::ReduceOp::kMax, {"test"}), result.grad_norm);
  EXPECT_EQ(world.all().reduce_value(params_norm, comm::ReduceOp::kMax, {"test"}), params_norm);
  const auto values = model.values();
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(at::equal(values[i], model.own_part(i, reference.values[i]))) << i;
  EXPECT_FALSE(model.all()[kBuffer]->main_grad.defined());
  expect_states(parallel, model, reference);
}

class ExpertLayouts : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(ExpertLayouts, TrainLikeOneRank) {
  comm::testing::run_ranks(4, [](comm::World& world) {
    for (const auto strategy : kStrategies) {
      for (const bool overlaps : {false, true}) {
        SCOPED_TRACE(config::enum_name(strategy) + (overlaps ? ", overlap" : ""));
        DataParallelOptions options{.strategy = strategy,
                                    .overlap_grad_reduce = overlaps,
                                    .overlap_param_gather = overlaps,
                                    .average_in_collective = overlaps};
        if (overlaps) options.bucket_size = 150;
        train(world, GetParam().sizes, options);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ExpertLayouts,
                         ::testing::Values(LayoutCase{"ep2", {.expert = 2}}, LayoutCase{"ep4", {.expert = 4}},
                                           LayoutCase{"tp2_ep2", {.tensor = 2, .expert = 2}},
                                           LayoutCase{"tp2", {.tensor = 2}}, LayoutCase{"tp4", {.tensor = 4}},
                                           LayoutCase{"tp2_ep2_etp2", {.tensor = 2, .expert = 2, .expert_tensor = 2}},
                                           LayoutCase{"cp2_ep2", {.context = 2, .expert = 2}}),
                         [](const auto& tested) { return tested.param.name; });

// Gradients that are reduced in bf16 are divided before they are rounded, those of experts by the same number.
TEST(ExpertGradients, AreAveragedOverAllDataParallelRanks) {
  comm::testing::run_ranks(4, [](comm::World& world) {
    const comm::Mesh mesh(4, {.expert = 2});
    const auto groups = [&] {
      return std::pair(&world.group(mesh, {MeshDim::kData}), &world.group(mesh, {MeshDim::kExpertData}));
    };
    const auto [data, expert_data] = groups();
    struct Case {
      bool in_collective, in_fp32, averages;
    };
    for (const Case c : {Case{false, true, true}, Case{true, true, true}, Case{false, false, true},
                         Case{true, false, true}, Case{false, true, false}}) {
      const DataParallelOptions options{
          .average_in_collective = c.in_collective, .reduce_in_fp32 = c.in_fp32, .averages = c.averages};
      const BucketReducer reducer(data, options, at::kBFloat16, expert_data);
      for (const bool is_expert : {false, true}) {
        const at::Tensor bucket = at::full({4}, 8.0, at::kFloat);
        auto reduction = reducer.start(bucket, 0, is_expert);
        reduction.work.wait();
        const double sum = 8.0 * (is_expert ? 2 : 4);
        EXPECT_EQ(reduction.result[1].item<double>() * reducer.remaining_factor(), c.averages ? sum / 4 : sum);
      }
      const BucketReducer lone(data, options, at::kBFloat16, nullptr);  // experts without copies
      const auto reduction = lone.start(at::full({4}, 8.0, at::kFloat), 0, true);
      EXPECT_EQ(reduction.result[1].item<double>() * lone.remaining_factor(), c.averages ? 2 : 8);
    }
  });
}

// Buckets hold parameters of one kind, in the order in which they become complete.
TEST(ExpertLayout, KeepsKindsApart) {
  const ExpertModel model(comm::Mesh(1, {}), 0);
  const auto members = [&](const DataParallelOptions& options) {
    std::vector<std::vector<std::size_t>> result;
    const FlatLayout layout = data_parallel_layout({model.all()}, options, 4, 2);
    for (const Bucket& bucket : layout.buckets) {
      result.push_back(bucket.parameters);
      EXPECT_EQ((bucket.end - bucket.begin) % (kFlatAlignment * (bucket.is_expert ? 2 : 4)), 0);
      for (const std::size_t index : bucket.parameters)
        EXPECT_EQ(tensor::is_expert(*model.all()[index]), bucket.is_expert);
    }
    return result;
  };
  using Members = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(members({.strategy = ShardingStrategy::kOptim}), (Members{{7, 6, 5}, {9, 8, 4, 3, 2, 1, 0}}));
  EXPECT_EQ(members({.strategy = ShardingStrategy::kOptimGrads}), (Members{{9}, {7, 6, 5}, {8, 4, 3, 2, 1}, {0}}));
  EXPECT_EQ(members({.strategy = ShardingStrategy::kOptim, .bucket_size = 128}),
            (Members{{9, 8}, {7, 6}, {5}, {4, 3}, {2, 1}, {0}}));
}

}  // namespace
}  // namespace pharos::optim
