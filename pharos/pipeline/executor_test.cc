#include "pharos/pipeline/executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/comm/testing.h"
#include "pharos/pipeline/run_schedule.h"

namespace pharos::pipeline {
namespace {

using ::testing::HasSubstr;

/// A model whose stage s maps (a, n) to (2a + s, n + 1), and gradients (g, k) to (3g - s, k + 1): a wrong tensor, a
/// wrong order or a wrong microbatch shows in the numbers.
class NumberStage : public StageRunner {
 public:
  NumberStage(const Schedule& schedule, int rank) : schedule_(schedule), rank_(rank) {}

  std::vector<TensorSpec> boundary(int microbatch, int) override {
    return {{{2, microbatch % 3 + 1}, at::kDouble}, {{1}, at::kLong}};
  }

  Tensors forward(int microbatch, int chunk, Tensors inputs) override {
    const int stage = stage_of(chunk);
    note(Phase::kForward, microbatch, chunk);
    at::Tensor values = inputs.empty() ? at::full({2, microbatch % 3 + 1}, microbatch, at::kDouble) : inputs[0];
    at::Tensor count = inputs.empty() ? at::zeros({1}, at::kLong) : inputs[1];
    EXPECT_EQ(inputs.empty(), stage == 0);
    EXPECT_EQ(count.item<std::int64_t>(), stage);
    values = 2 * values + stage;
    count = count + 1;
    if (stage < num_stages() - 1) return {values, count};
    outputs[microbatch] = values.sum().item<double>() / static_cast<double>(values.numel());
    return {};
  }

  Tensors backward(int microbatch, int chunk, Tensors output_grads) override {
    const int stage = stage_of(chunk);
    note(Phase::kBackward, microbatch, chunk);
    EXPECT_EQ(output_grads.empty(), stage == num_stages() - 1);
    at::Tensor values =
        output_grads.empty() ? at::full({2, microbatch % 3 + 1}, microbatch + 1, at::kDouble) : output_grads[0];
    at::Tensor count = output_grads.empty() ? at::zeros({1}, at::kLong) : output_grads[1];
    EXPECT_EQ(count.item<std::int64_t>(), num_stages() - 1 - stage);
    values = 3 * values - stage;
    if (stage > 0) return {values, count + 1};
    gradients[microbatch] = values.sum().item<double>() / static_cast<double>(values.numel());
    return {};
  }

  void weight(int microbatch, int chunk) override { note(Phase::kWeight, microbatch, chunk); }

  std::vector<Action> walked;
  std::map<int, double> outputs, gradients;  ///< [microbatch]

 private:
  int stage_of(int chunk) const { return schedule_.stage_of[rank_][chunk]; }
  int num_stages() const { return schedule_.num_ranks * schedule_.num_chunks; }
  void note(Phase phase, int microbatch, int chunk) { walked.push_back({phase, microbatch, chunk}); }

  const Schedule& schedule_;
  int rank_;
};

Channels channels_of(comm::World& world) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (ranks.size() == 1) return {};
  return {&world.group("pp-up", ranks), &world.group("pp-down", ranks)};
}

/// What comes out of all stages, computed by hand.
double expected_output(int microbatch, int num_stages) {
  double value = microbatch;
  for (int stage = 0; stage < num_stages; ++stage) value = 2 * value + stage;
  return value;
}
double expected_gradient(int microbatch, int num_stages) {
  double value = microbatch + 1;
  for (int stage = num_stages - 1; stage >= 0; --stage) value = 3 * value - stage;
  return value;
}

/// Runs `schedules` one after the other on `num_ranks` ranks and checks orders and numbers.
void expect_right(int num_ranks, const std::vector<Schedule>& schedules) {
  std::mutex mutex;
  std::map<std::string, std::map<int, double>> outputs, gradients;
  comm::testing::run_ranks(num_ranks, [&](comm::World& world) {
    const int rank = static_cast<int>(world.rank());
    for (const Schedule& schedule : schedules) {
      Executor executor(schedule, rank, channels_of(world), at::kCPU);
      for (const std::int64_t step : {1, 2}) {
        NumberStage stage(schedule, rank);
        const MeasuredStep measured = executor.run(stage, step);
        EXPECT_EQ(stage.walked, schedule.actions[rank]) << schedule.name;
        EXPECT_EQ(measured.step, step);
        EXPECT_EQ(measured.stages, schedule.stage_of[rank]);
        ASSERT_EQ(measured.actions.size(), schedule.actions[rank].size());
        std::int64_t last = 0;
        for (const MeasuredAction& action : measured.actions) {
          EXPECT_LE(last, action.asked_ns);
          EXPECT_LE(action.asked_ns, action.start_ns);
          EXPECT_LE(action.start_ns, action.end_ns);
          last = action.end_ns;
        }
        const std::lock_guard lock(mutex);
        outputs[schedule.name].insert(stage.outputs.begin(), stage.outputs.end());
        gradients[schedule.name].insert(stage.gradients.begin(), stage.gradients.end());
      }
    }
  });
  for (const Schedule& schedule : schedules) {
    const int num_stages = num_ranks * schedule.num_chunks;
    const bool trains = schedule.actions[0].back().phase != Phase::kForward;
    EXPECT_EQ(outputs[schedule.name].size(), static_cast<std::size_t>(schedule.num_microbatches)) << schedule.name;
    for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch) {
      EXPECT_DOUBLE_EQ(outputs[schedule.name][microbatch], expected_output(microbatch, num_stages)) << schedule.name;
      if (!trains) continue;
      EXPECT_DOUBLE_EQ(gradients[schedule.name][microbatch], expected_gradient(microbatch, num_stages))
          << schedule.name;
    }
  }
}

config::ModelConfig model_of(const std::string& schedule, int num_ranks, int num_chunks) {
  config::ModelConfig model;
  model.pipeline_schedule = schedule;
  model.pipeline_model_parallel_size = num_ranks;
  if (num_chunks > 1) model.virtual_pipeline_model_parallel_size = num_chunks;
  return model;
}

TEST(Executor, EverySchedulePassesEachTensorToWhereItBelongs) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    std::vector<Schedule> schedules;
    for (const std::string& name : schedule_names()) {
      const int num_chunks = name == "zbv" || name == "dualpipev" ? 2 : name == "interleaved" ? 3 : 1;
      schedules.push_back(make_schedule(
          name, {.num_ranks = num_ranks, .num_chunks = num_chunks, .num_microbatches = 2 * num_ranks + 3 * num_ranks}));
    }
    schedules.push_back(forward_schedule(model_of("zbv", num_ranks, 2), 5));
    expect_right(num_ranks, schedules);
  }
}

TEST(Executor, OddNumbersOfMicrobatches) {
  expect_right(3, {gpipe(3, 1), one_forward_one_backward(3, 2), zero_bubble_1p(3, 7), zero_bubble_v(3, 1),
                   dual_pipe_v(3, 11), forward_schedule(model_of("interleaved", 3, 2), 7)});
}

TEST(Executor, ForwardScheduleHasEachForwardOnce) {
  for (const char* name : {"1f1b", "zbv", "dualpipev", "interleaved"}) {
    const int num_chunks = std::string(name) == "1f1b" ? 1 : 2;
    const Schedule schedule = forward_schedule(model_of(name, 4, num_chunks), 6);
    EXPECT_THAT(check(schedule), ::testing::IsEmpty()) << name;
    EXPECT_EQ(schedule.stage_of, stages_of_ranks(model_of(name, 4, num_chunks))) << name;
  }
}

TEST(Executor, StagesOfRanksAreThoseOfTheGenerators) {
  for (const std::string& name : schedule_names()) {
    const int num_chunks = name == "zbv" || name == "dualpipev" || name == "interleaved" ? 2 : 1;
    const config::ModelConfig model = model_of(name, 4, num_chunks);
    EXPECT_EQ(stages_of_ranks(model), schedule_of(model, 8).stage_of) << name;
  }
}

TEST(Executor, AnExceptionNamesActionAndStage) {
  class Failing : public NumberStage {
   public:
    using NumberStage::NumberStage;
    Tensors forward(int microbatch, int chunk, Tensors inputs) override {
      if (microbatch == 2) throw std::runtime_error("out of luck");
      return NumberStage::forward(microbatch, chunk, std::move(inputs));
    }
  };
  std::string message;
  comm::testing::run_ranks(2, [&](comm::World& world) {
    const Schedule schedule = one_forward_one_backward(2, 4);
    const int rank = static_cast<int>(world.rank());
    Executor executor(schedule, rank, channels_of(world), at::kCPU);
    if (rank == 0) {
      // All that rank 1 has asked for when it fails, and no more.
      NumberStage stage(schedule, 0);
      Tensors kept;
      for (int microbatch : {0, 1, 2, 3}) {
        const Tensors output = stage.forward(microbatch, 0, {});
        for (const at::Tensor& tensor : output) channels_of(world).ascending->send(tensor, 1, {"activations"}).wait();
        if (microbatch >= 2) continue;
        for (const TensorSpec& spec : stage.boundary(microbatch, 0)) {
          kept.push_back(at::empty(spec.sizes, at::TensorOptions().dtype(spec.type)));
          channels_of(world).descending->receive(kept.back(), 1, {"gradients"}).wait();
        }
      }
      return;
    }
    Failing stage(schedule, 1);
    try {
      executor.run(stage, 7);
    } catch (const base::TrainingError& error) {
      message = error.what();
    }
  });
  EXPECT_THAT(message, HasSubstr("out of luck"));
  EXPECT_THAT(message, HasSubstr("forward of microbatch 2 on stage 1 (pipeline rank 1, chunk 0) in step 7"));
}

TEST(Executor, TensorsThatHaveArrivedAreLetGo) {
  /// Counts what it handed over and is still alive when the next action comes.
  class Counting : public StageRunner {
   public:
    explicit Counting(int rank) : rank_(rank) {}
    std::vector<TensorSpec> boundary(int, int) override { return {{{1}, at::kFloat}}; }
    Tensors forward(int, int, Tensors) override { return rank_ == 0 ? hand_over() : Tensors{}; }
    Tensors backward(int, int, Tensors) override { return rank_ == 1 ? hand_over() : Tensors{}; }
    void weight(int, int) override {}
    int most_alive = 0;

   private:
    Tensors hand_over() {
      most_alive = std::max(most_alive, ++alive_);
      auto release = [this](void* data) {
        delete static_cast<float*>(data);
        --alive_;
      };
      return {at::from_blob(new float(1), {1}, release, at::TensorOptions().dtype(at::kFloat))};
    }
    int rank_;
    std::atomic<int> alive_ = 0;
  };
  comm::testing::run_ranks(2, [](comm::World& world) {
    const int rank = static_cast<int>(world.rank());
    for (const Schedule& schedule : {one_forward_one_backward(2, 12), forward_schedule(model_of("1f1b", 2, 1), 12)}) {
      Counting stage(rank);
      Executor executor(schedule, rank, channels_of(world), at::kCPU);
      executor.run(stage, 1);
      EXPECT_LE(stage.most_alive, 4) << schedule.name << rank;
    }
  });
}

TEST(Executor, ScheduleOfTheConfigurationIsRefusedWithReason) {
  EXPECT_THROW(schedule_of(model_of("1f2b", 2, 1), 4), base::UserError);
  EXPECT_THROW(schedule_of(model_of("interleaved", 2, 1), 4), base::UserError);
  EXPECT_THROW(schedule_of(model_of("dualpipev", 4, 1), 3), base::UserError);
  EXPECT_THROW(schedule_of(model_of("zbv", 4, 3), 8), base::UserError);
}

}  // namespace
}  // namespace pharos::pipeline
