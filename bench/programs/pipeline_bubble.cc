// Bubbles as the simulator predicts them and as ranks have them, with stages that take the time they are told: they
// sleep. Four ranks, one thread each, small tensors per hop. Prints one line of JSON; exit code 1 when a prediction is
// more than --tolerance points off, or when ZBV or DualPipeV take longer than 1F1B with equal costs.
//
//     build/release/bench/pipeline_bubble --steps 5
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/prctl.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "pharos/comm/testing.h"
#include "pharos/pipeline/executor.h"
#include "pharos/pipeline/report/measured_timeline.h"
#include "pharos/pipeline/simulate.h"

namespace pharos::pipeline {
namespace {

constexpr int kNumRanks = 4;

/// What a rank's whole share takes for a microbatch, in milliseconds.
struct Costs {
  std::string name;
  double forward, backward, weight;
  double slow_stage = 1;  ///< factor of stage 1
};

struct Arguments {
  int num_steps = 5;
  double scale = 1;
  double tolerance = 3;
  std::vector<int> microbatches = {8, 12};
};

class SleepingRunner : public StageRunner {
 public:
  SleepingRunner(const Schedule& schedule, const StageCosts& costs, int rank)
      : stages_(schedule.stage_of[rank]),
        last_stage_(schedule.num_ranks * schedule.num_chunks - 1),
        has_weight_(last_phase(schedule) == Phase::kWeight),
        costs_(costs) {
    prctl(PR_SET_TIMERSLACK, 1);  // else the kernel may end each sleep 50 us late
  }

  std::vector<TensorSpec> boundary(int, int) override { return {{{1}, at::kFloat}}; }

  Tensors forward(int, int chunk, Tensors) override {
    sleep_ms(costs_.forward[stages_[chunk]]);
    return stages_[chunk] < last_stage_ ? Tensors{value_} : Tensors{};
  }

  Tensors backward(int, int chunk, Tensors) override {
    const int stage = stages_[chunk];
    sleep_ms(costs_.backward[stage] + (has_weight_ ? 0 : costs_.weight[stage]));
    return stage > 0 ? Tensors{value_} : Tensors{};
  }

  void weight(int, int chunk) override { sleep_ms(costs_.weight[stages_[chunk]]); }

 private:
  static void sleep_ms(double milliseconds) {
    timespec end{};
    clock_gettime(CLOCK_MONOTONIC, &end);
    const auto nanoseconds = end.tv_nsec + static_cast<std::int64_t>(milliseconds * 1e6);
    end.tv_sec += nanoseconds / 1'000'000'000;
    end.tv_nsec = nanoseconds % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, nullptr) == EINTR) {
    }
  }

  std::vector<int> stages_;
  int last_stage_;
  bool has_weight_;
  const StageCosts& costs_;
  at::Tensor value_ = at::zeros({1});
};

Schedule schedule_for(const std::string& name, int num_microbatches) {
  const int num_chunks = name == "interleaved" || name == "zbv" || name == "dualpipev" ? 2 : 1;
  return make_schedule(name, {.num_ranks = kNumRanks, .num_chunks = num_chunks, .num_microbatches = num_microbatches});
}

StageCosts stage_costs(const Costs& costs, const Schedule& schedule, double scale) {
  const double part = scale / schedule.num_chunks;
  StageCosts stages = even_costs(schedule.num_ranks * schedule.num_chunks, costs.forward * part, costs.backward * part,
                                 costs.weight * part);
  for (auto* times : {&stages.forward, &stages.backward, &stages.weight}) (*times)[1] *= costs.slow_stage;
  return stages;
}

/// The steps of all ranks; the first, which connects the ranks, is left out.
std::vector<StepTimeline> measure(const Schedule& schedule, const StageCosts& costs, int num_steps) {
  std::mutex mutex;
  std::vector<MeasuredStep> measured;
  comm::testing::run_ranks(kNumRanks, [&](comm::World& world) {
    const int rank = static_cast<int>(world.rank());
    std::vector<std::int64_t> ranks(kNumRanks);
    std::iota(ranks.begin(), ranks.end(), 0);
    Executor executor(schedule, rank, {&world.group("pp-up", ranks), &world.group("pp-down", ranks)}, at::kCPU);
    SleepingRunner runner(schedule, costs, rank);
    for (int step = 0; step <= num_steps; ++step) {
      world.all().barrier({"start of step"});
      MeasuredStep result = executor.run(runner, step + 1);
      result.global_rank = rank;
      const std::lock_guard lock(mutex);
      if (step > 0) measured.push_back(std::move(result));
    }
  });
  return step_timelines(measured);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Result {
  nlohmann::ordered_json json;
  double difference;  ///< points
  double span;        ///< ms, measured
};

Result compare(const Costs& costs, const std::string& name, int num_microbatches, const Arguments& arguments) {
  const Schedule schedule = schedule_for(name, num_microbatches);
  const StageCosts stages = stage_costs(costs, schedule, arguments.scale);
  const Timeline predicted = simulate(schedule, stages);
  std::vector<double> bubbles, spans;
  for (const StepTimeline& step : measure(schedule, stages, arguments.num_steps)) {
    bubbles.push_back(step.timeline.bubble);
    spans.push_back(step.timeline.span);
  }
  const double bubble = median(bubbles), span = median(spans);
  const double difference = 100 * (bubble - predicted.bubble);
  return {{{"costs", costs.name},
           {"schedule", name},
           {"microbatches", num_microbatches},
           {"predicted_percent", 100 * predicted.bubble},
           {"measured_percent", 100 * bubble},
           {"difference_points", difference},
           {"predicted_span_ms", predicted.span},
           {"measured_span_ms", span}},
          difference,
          span};
}

/// Whether all is as promised; prints what was found.
bool compare_all(const Arguments& arguments) {
  const std::vector<Costs> all_costs = {{"equal", 8, 8, 8}, {"slow stage", 8, 8, 8, 1.5}, {"long backward", 8, 12, 4}};
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  double worst = 0, slowest_ratio = 0;
  for (const Costs& costs : all_costs) {
    for (const int num_microbatches : arguments.microbatches) {
      std::map<std::string, double> spans;
      for (const std::string& name : schedule_names()) {
        const Result result = compare(costs, name, num_microbatches, arguments);
        results.push_back(result.json);
        worst = std::max(worst, std::abs(result.difference));
        spans[name] = result.span;
      }
      if (costs.name == "equal")
        slowest_ratio = std::max({slowest_ratio, spans["zbv"] / spans["1f1b"], spans["dualpipev"] / spans["1f1b"]});
    }
  }
  std::cout << nlohmann::ordered_json{{"ranks", kNumRanks},
                                      {"steps", arguments.num_steps},
                                      {"worst_difference_points", worst},
                                      {"zbv_and_dualpipev_span_of_1f1b", slowest_ratio},
                                      {"results", results}}
                   .dump()
            << std::endl;
  return worst <= arguments.tolerance && slowest_ratio < 1;
}

}  // namespace
}  // namespace pharos::pipeline

int main(int argc, char** argv) {
  pharos::pipeline::Arguments arguments;
  CLI::App app("Predicted and measured bubbles of all schedules with stages that sleep, as JSON");
  app.add_option("--steps", arguments.num_steps, "Measured steps; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--scale", arguments.scale, "Factor of the stage times, 8 ms for a rank's share")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tolerance", arguments.tolerance, "Points that a prediction may be off")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--microbatches", arguments.microbatches, "Microbatches of a step, at least 8")
      ->check(CLI::Range(8, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  return pharos::pipeline::compare_all(arguments) ? 0 : 1;
}
