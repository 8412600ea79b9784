// Weights that the first and the last rank of a pipeline both hold.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pharos/comm/testing.h"
#include "pharos/config/schema/enum_names.h"
#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/optim/parallel/test_model.h"

namespace pharos::optim {
namespace {

using comm::MeshDim;
using config::ShardingStrategy;
using tensor::Parameter;

constexpr ShardingStrategy kStrategies[] = {ShardingStrategy::kNoShard, ShardingStrategy::kOptim,
                                            ShardingStrategy::kOptimGrads, ShardingStrategy::kOptimGradsParams};
constexpr int kSteps = 3, kMicrobatches = 2;
constexpr std::int64_t kData = 2, kStages = 3;
constexpr std::size_t kWords = 0;

/// Parameters of the whole model, by number: [first, last) on the first stage, none on the second, the others and the
/// words on the third.
constexpr std::array<std::array<std::int64_t, 2>, 5> kShapes{{{11, 7}, {1, 7}, {33, 17}, {65, 3}, {1, 2}}};
constexpr std::size_t kFirstOfLastStage = 3;

/// What a stage holds of the model; stage -1: everything.
struct Part {
  Part(std::int64_t stage, at::ScalarType dtype) {
    for (std::size_t number = 0; number < kShapes.size(); ++number) {
      if (stage == -1 || stage == (number < kFirstOfLastStage ? 0 : 2)) add(number, dtype);
    }
    if (stage == -1) words().num_uses = 2;
    if (stage == 0) words().tie = Parameter::Tie::kOriginal;
    if (stage == 2) {
      add(kWords, dtype);
      words().tie = Parameter::Tie::kCopy;
    }
  }

  void add(std::size_t number, at::ScalarType dtype) {
    numbers.push_back(number);
    parameters.push_back(std::make_unique<Parameter>());
    parameters.back()->name = "decoder.layers." + std::to_string(number / 2) + ".weight" + std::to_string(number);
    parameters.back()->data = seeded_normal(kShapes[number], number).to(dtype).requires_grad_();
  }

  Parameter& words() const { return *parameters[numbers.front() == kWords ? 0 : numbers.size() - 1]; }

  std::vector<Parameter*> all() const {
    std::vector<Parameter*> pointers;
    for (const auto& parameter : parameters) pointers.push_back(parameter.get());
    return pointers;
  }

  /// Adds the gradients of a microbatch: the words' embedding has use 0, the output layer use 1.
  void run_microbatch(int step, int microbatch, std::int64_t data_rank) const {
    for (std::size_t i = 0; i < numbers.size(); ++i) tensor::value(*parameters[i]);
    for (std::size_t i = numbers.size(); i-- > 0;) {
      const int first_use = parameters[i]->tie == Parameter::Tie::kCopy ? 1 : 0;
      for (int use = first_use; use < first_use + parameters[i]->num_uses; ++use) {
        const auto seed = static_cast<std::uint64_t>(
            (((static_cast<int>(numbers[i]) * 10 + step) * 10 + microbatch) * 10 + static_cast<int>(data_rank)) * 2 +
            use);
        const at::NoGradGuard no_grad;
        tensor::value(*parameters[i]);
        // So small multiples of 1/8 that all sums are exact even in bf16; some are zero.
        tensor::add_gradient(*parameters[i], [&](at::Tensor main_grad) {
          main_grad.add_(seeded_normal(kShapes[numbers[i]], seed).mul(3).round().clamp(-10, 10).div(8));
        });
      }
    }
  }

  std::vector<std::size_t> numbers;
  std::vector<std::unique_ptr<Parameter>> parameters;
};

struct Case {
  ShardingStrategy strategy;
  bool overlaps;
  at::ScalarType dtype;
  double clip_grad;

  OptimizerOptions optimizer() const {
    OptimizerOptions options;
    options.clip_grad = clip_grad;
    options.count_zeros = true;
    return options;
  }
};

struct Outcome {
  std::array<at::Tensor, kShapes.size()> values;
  std::vector<StepResult> steps;
  double params_norm = 0;
};

Outcome run_alone(const Case& c) {
  const Part model(-1, c.dtype);
  DataParallel alone({model.all()}, {}, comm::Mesh(1, {}), 0, {.averages = false}, c.optimizer());
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    alone.begin_step(kMicrobatches);
    for (std::int64_t rank = 0; rank < kData; ++rank) {
      for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) model.run_microbatch(step, microbatch, rank);
    }
    alone.finish_gradients();
    alone.scale_gradients(1.0 / kData);
    outcome.steps.push_back(alone.step(1e-2, 0.1));
  }
  for (std::size_t i = 0; i < kShapes.size(); ++i) outcome.values[i] = model.parameters[i]->data.detach();
  outcome.params_norm = alone.params_norm();
  return outcome;
}

/// The words of every rank, compared bit for bit.
class Copies {
 public:
  void expect_same(const at::Tensor& values) {
    const std::lock_guard lock(mutex_);
    if (!first_.defined()) first_ = values;
    EXPECT_TRUE(at::equal(first_, values));
  }

 private:
  std::mutex mutex_;
  at::Tensor first_;
};

void train(const Case& c, comm::World& world, const Outcome& expected, Copies& copies) {
  SCOPED_TRACE(config::enum_name(c.strategy) + (c.overlaps ? ", overlap, " : ", ") + c10::toString(c.dtype) +
               ", rank " + std::to_string(world.rank()));
  const comm::Mesh mesh(world.size(), {.pipeline = kStages});
  const Part part(mesh.coordinate(world.rank(), MeshDim::kPipeline), c.dtype);
  DataParallel parallel({part.all()}, parallel_groups(world, mesh, part.all(), {0, kStages - 1}), mesh, world.rank(),
                        {.strategy = c.strategy,
                         .overlap_grad_reduce = c.overlaps,
                         .overlap_param_gather = c.overlaps,
                         .reduce_in_fp32 = !c.overlaps},
                        c.optimizer());
  for (int step = 0; step < kSteps; ++step) {
    parallel.begin_step(kMicrobatches);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      parallel.begin_pass();
      part.run_microbatch(step, microbatch, mesh.coordinate(world.rank(), MeshDim::kData));
    }
    parallel.finish_gradients();
    EXPECT_TRUE(parallel.non_finite_parameters().empty());
    const StepResult result = parallel.step(1e-2, 0.1);
    EXPECT_TRUE(result.update_successful);
    EXPECT_NEAR(result.grad_norm, expected.steps[step].grad_norm, 1e-6 * result.grad_norm);
    EXPECT_EQ(result.num_zeros, expected.steps[step].num_zeros);
  }
  EXPECT_NEAR(parallel.params_norm(), expected.params_norm, 1e-6 * expected.params_norm);
  for (std::size_t i = 0; i < part.numbers.size(); ++i) {
    const at::Tensor values = tensor::value(*part.parameters[i]).detach().clone();
    const at::Tensor& reference = expected.values[part.numbers[i]];
    EXPECT_TRUE(c.clip_grad > 0 || at::equal(values, reference)) << part.numbers[i];
    EXPECT_LE((values - reference).abs().max().item<double>(), c.dtype == at::kFloat ? 1e-6 : 1e-2);
    if (part.numbers[i] == kWords) copies.expect_same(values);
  }
  parallel.copy_data_to_main();
  parallel.copy_main_to_data();
}

class TiedWeights : public ::testing::TestWithParam<ShardingStrategy> {};

// Three stages, the middle one without weights, times two data-parallel ranks: values, norms and zeros are those of one
// rank that holds the words once; the copies are equal bit for bit, also with a clipped gradient.
TEST_P(TiedWeights, EqualOneRank) {
  std::vector<Case> cases;
  for (const bool overlaps : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) cases.push_back({GetParam(), overlaps, dtype, 0});
    cases.push_back({GetParam(), overlaps, at::kFloat, 0.5});
  }
  std::vector<Outcome> references;
  for (const Case& c : cases) references.push_back(run_alone(c));
  std::vector<Copies> copies(cases.size());
  comm::testing::run_ranks(kData * kStages, [&](comm::World& world) {
    for (std::size_t i = 0; i < cases.size(); ++i) train(cases[i], world, references[i], copies[i]);
  });
}

INSTANTIATE_TEST_SUITE_P(All, TiedWeights, ::testing::ValuesIn(kStrategies),
                         [](const auto& tested) { return config::enum_name(tested.param); });

}  // namespace
}  // namespace pharos::optim
