#include "pharos/pipeline/report/measured_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/pipeline/report/test_measured.h"

namespace pharos::pipeline {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

MATCHER(IsNear, "") { return std::abs(std::get<0>(arg) - std::get<1>(arg)) < 1e-6; }

int num_stages(const Schedule& schedule) { return schedule.num_ranks * schedule.num_chunks; }

// busy + idle = span on every rank, and the measured timeline is the one the steps were made of.
TEST(StepTimelines, GiveBackTheTimeline) {
  for (const Schedule& schedule : one_of_each()) {
    const Timeline timeline = simulate(schedule, uneven_costs(num_stages(schedule), 3));
    const auto steps = step_timelines(measured_of(timeline, 7));
    ASSERT_EQ(steps.size(), 1U) << schedule.name;
    const Timeline& measured = steps[0].timeline;
    EXPECT_EQ(steps[0].step, 7);
    EXPECT_NEAR(measured.span, timeline.span, 1e-6);
    EXPECT_NEAR(measured.bubble, timeline.bubble, 1e-9);
    EXPECT_EQ(measured.schedule.actions, schedule.actions);
    for (std::size_t rank = 0; rank < measured.ranks.size(); ++rank) {
      const RankTimeline &line = measured.ranks[rank], &expected = timeline.ranks[rank];
      EXPECT_NEAR(line.busy + line.idle(), measured.span, 1e-6);
      EXPECT_NEAR(line.idle_before, expected.idle_before, 1e-6);
      EXPECT_NEAR(line.idle_stage, expected.idle_stage, 1e-6) << schedule.name << rank;
      EXPECT_NEAR(line.idle_transfer, expected.idle_transfer, 1e-6) << schedule.name << rank;
      EXPECT_NEAR(line.idle_after, expected.idle_after, 1e-6);
      EXPECT_EQ(line.peak_in_flight, expected.peak_in_flight);
    }
  }
}

// One microbatch through two stages: rank 0 is asked for its backward 2 ms late.
TEST(IdleTimes, HaveReasons) {
  auto steps = measured_of(simulate(gpipe(2, 1), even_costs(2, 10, 5, 5, 3)));
  steps[0].actions[1].asked_ns += test_ns(2);
  const auto idle = step_timelines(steps)[0].idle;
  EXPECT_THAT(idle[0], ElementsAre(Idle{IdleReason::kHost, 10, 12}, Idle{IdleReason::kStage, 12, 33, 1},
                                   Idle{IdleReason::kTransfer, 33, 36, 1}));
  EXPECT_THAT(idle[1], ElementsAre(Idle{IdleReason::kFill, 0, 13}, Idle{IdleReason::kDrain, 33, 46}));
}

TEST(StepTimelines, LeaveOutWhatIsNotWhole) {
  const Timeline timeline = simulate(one_forward_one_backward(3, 4), even_costs(3));
  auto steps = measured_of(timeline, 1);
  const auto add = [&steps](std::vector<MeasuredStep> more) { steps.insert(steps.end(), more.begin(), more.end()); };
  auto cut = measured_of(timeline, 2), short_one = measured_of(timeline, 3), other = measured_of(timeline, 4);
  cut.pop_back();
  short_one[1].actions.pop_back();
  for (MeasuredStep& step : other) step.replica = 8;
  add(cut);
  add(short_one);
  add(other);
  const auto whole = step_timelines(steps);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].step, 1);
  ASSERT_EQ(step_timelines(steps, 8).size(), 1U);
}

// Ranks 2 and 3 of a pipeline over four ranks did the step before the run went on with two ranks.
TEST(StepTimelines, FollowTheNewestLayout) {
  auto old = measured_of(simulate(gpipe(4, 2), even_costs(4)), 3);
  for (MeasuredStep& step : old) {
    for (MeasuredAction& action : step.actions) {
      for (auto* time : {&action.asked_ns, &action.start_ns, &action.end_ns}) *time -= 500'000'000;
    }
  }
  auto steps = measured_of(simulate(gpipe(2, 2), even_costs(2)), 3);
  steps.push_back(old[2]);
  steps.push_back(old[3]);
  const auto whole = step_timelines(steps);
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].timeline.schedule.num_ranks, 2);
}

TEST(TypicalSteps, AreLikeTheLastAndNotTheFirst) {
  std::vector<MeasuredStep> steps;
  const auto add = [&steps](const Schedule& schedule, std::int64_t step) {
    for (const MeasuredStep& measured : measured_of(simulate(schedule, even_costs(2)), step)) steps.push_back(measured);
  };
  const auto numbers = [&steps] {
    std::vector<std::int64_t> found;
    for (const StepTimeline& step : typical_steps(step_timelines(steps))) found.push_back(step.step);
    return found;
  };
  EXPECT_THAT(numbers(), ElementsAre());
  add(gpipe(2, 4), 1);
  EXPECT_THAT(numbers(), ElementsAre(1));
  add(gpipe(2, 2), 2);
  add(gpipe(2, 4), 3);
  add(gpipe(2, 4), 4);
  EXPECT_THAT(numbers(), ElementsAre(3, 4));
}

// Offsets that the order of actions disproves are found to the slack of the tensors; smaller ones are left.
TEST(ClockOffsets, ComeFromCausality) {
  for (const Schedule& schedule : one_of_each()) {
    const Timeline timeline = simulate(schedule, even_costs(num_stages(schedule), 10, 10, 10, 2));
    const auto offsets_of = [&timeline](const std::vector<double>& clock) {
      return step_timelines(measured_of(timeline, 1, clock)).at(0).clock_offset_ns;
    };
    EXPECT_THAT(offsets_of({0, 0, 0}), ElementsAre(0, 0, 0)) << schedule.name;
    EXPECT_THAT(offsets_of({0, 1.5, 0}), ElementsAre(0, 0, 0)) << schedule.name;
    const auto found = offsets_of({0, 5000, -3000});
    // No action of these schedules is later than its input by more than a few actions: the bounds are that close.
    EXPECT_NEAR(static_cast<double>(found[1]), 5000e6, 16e6) << schedule.name;
    EXPECT_NEAR(static_cast<double>(found[2]), -3000e6, 32e6) << schedule.name;
  }
  // In 1F1B receivers wait in both directions: the middle is exact, and so is the timeline.
  const Timeline timeline = simulate(one_forward_one_backward(3, 8), even_costs(3, 10, 10, 10, 2));
  const auto step = step_timelines(measured_of(timeline, 1, {100, -50, 7})).at(0);
  EXPECT_THAT(step.clock_offset_ns, ElementsAre(0, test_ns(-150), test_ns(-93)));
  EXPECT_NEAR(step.timeline.span, timeline.span, 1e-6);
}

TEST(ClockOffsets, OfForwardsOnlyTakeTheOneBound) {
  const Timeline timeline = simulate(forward_only(2, 3), even_costs(2, 10, 0, 0, 0));
  EXPECT_THAT(step_timelines(measured_of(timeline, 1, {0, -40})).at(0).clock_offset_ns, ElementsAre(0, test_ns(-40)));
  EXPECT_THAT(step_timelines(measured_of(timeline, 1, {0, 40})).at(0).clock_offset_ns, ElementsAre(0, 0));
}

TEST(CostsOf, GivesBackTheCosts) {
  for (const Schedule& schedule : one_of_each()) {
    const StageCosts costs = uneven_costs(num_stages(schedule), 3);
    const StageCosts measured = costs_of(measured_of(simulate(schedule, costs)));
    EXPECT_THAT(measured.forward, Pointwise(IsNear(), costs.forward)) << schedule.name;
    if (last_phase(schedule) == Phase::kWeight) {
      EXPECT_THAT(measured.backward, Pointwise(IsNear(), costs.backward)) << schedule.name;
      EXPECT_THAT(measured.weight, Pointwise(IsNear(), costs.weight)) << schedule.name;
    } else {
      for (std::size_t stage = 0; stage < costs.forward.size(); ++stage) {
        EXPECT_NEAR(measured.backward[stage], (costs.backward[stage] + costs.weight[stage]) / 2, 1e-6);
        EXPECT_EQ(measured.weight[stage], measured.backward[stage]);
      }
    }
    EXPECT_THAT(measured.transfer, Pointwise(IsNear(), costs.transfer)) << schedule.name;
  }
}

TEST(CostsOf, IsNotMovedByOneSlowActionOrTheFirstStep) {
  const Timeline timeline = simulate(gpipe(2, 5), even_costs(2, 10, 10, 10));
  std::vector<MeasuredStep> steps = measured_of(simulate(gpipe(2, 5), even_costs(2, 90, 90, 90)), 1);
  for (MeasuredStep step : measured_of(timeline, 2)) {
    if (step.rank == 1) step.actions.back().end_ns += test_ns(500);
    steps.push_back(step);
  }
  const StageCosts costs = costs_of(steps);
  EXPECT_THAT(costs.forward, Pointwise(IsNear(), {10.0, 10.0}));
  EXPECT_THAT(costs.backward, Pointwise(IsNear(), {10.0, 10.0}));
}

// A small offset of the clocks makes one direction of a hop longer and the other shorter.
TEST(CostsOf, TransfersDoNotDependOnSmallOffsets) {
  const Timeline timeline = simulate(one_forward_one_backward(3, 8), even_costs(3, 10, 10, 10, 2));
  EXPECT_THAT(costs_of(measured_of(timeline, 1, {0, 1, -0.5})).transfer, Pointwise(IsNear(), {2.0, 2.0, 2.0}));
}

TEST(CostsOf, DividesMeasuredBytes) {
  auto steps = measured_of(simulate(one_forward_one_backward(2, 4), even_costs(2)));
  steps[0].peak_activation_bytes = 600;
  steps[1].peak_activation_bytes = 500;
  EXPECT_THAT(costs_of(steps).activation_bytes, ElementsAre(300, 500));
}

TEST(CostsOf, NeedsAWholeStep) { EXPECT_THROW(costs_of(std::vector<MeasuredStep>{}), base::UserError); }

}  // namespace
}  // namespace pharos::pipeline
