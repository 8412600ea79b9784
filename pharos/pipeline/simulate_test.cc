#include "pharos/pipeline/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "pharos/base/error.h"
#include "pharos/pipeline/transfers.h"

namespace pharos::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Phase F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

std::vector<Schedule> one_of_each(int ranks, int microbatches) {
  return {gpipe(ranks, microbatches),          one_forward_one_backward(ranks, microbatches),
          zero_bubble_1p(ranks, microbatches), zero_bubble_v(ranks, microbatches),
          dual_pipe_v(ranks, microbatches),    interleaved(ranks, 3, 2 * ranks, ranks)};
}

TEST(Simulate, SplitsTheIdleTime) {
  const Timeline timeline = simulate(one_forward_one_backward(2, 1), even_costs(2, 1, 1, 1, 0.5));
  ASSERT_EQ(timeline.ranks.size(), 2U);
  const RankTimeline &first = timeline.ranks[0], &second = timeline.ranks[1];
  EXPECT_EQ(timeline.span, 7);  // F 0-1, 0.5 on the way, F 1.5-2.5, B 2.5-4.5, 0.5 on the way, B 5-7
  EXPECT_EQ(second.actions[0].start, 1.5);
  EXPECT_EQ(first.actions[1].start, 5);
  EXPECT_EQ(first.actions[1].end, 7);
  EXPECT_THAT((std::vector{first.idle_before, first.idle_stage, first.idle_transfer, first.idle_after}),
              ElementsAre(0, 3.5, 0.5, 0));
  EXPECT_THAT((std::vector{second.idle_before, second.idle_stage, second.idle_transfer, second.idle_after}),
              ElementsAre(1.5, 0, 0, 2.5));
  EXPECT_DOUBLE_EQ(first.bubble, 4.0 / 7);
  EXPECT_DOUBLE_EQ(timeline.bubble, 8.0 / 14);
}

// Stage 1 takes twice as long as stage 0: with many microbatches the span is its work plus the fill and drain of stage
// 0.
TEST(Simulate, TheSlowestStageSetsThePace) {
  StageCosts costs = even_costs(2, 1, 1, 1);
  costs.forward[1] = costs.backward[1] = costs.weight[1] = 2;
  const Timeline timeline = simulate(one_forward_one_backward(2, 10), costs);
  EXPECT_EQ(timeline.span, 1 + 10 * 6 + 2);
  EXPECT_EQ(timeline.ranks[0].busy, 30);
  EXPECT_EQ(timeline.ranks[1].busy, 60);
  EXPECT_DOUBLE_EQ(timeline.bubble, (2 * 63 - 90) / (2 * 63.0));
}

TEST(Simulate, WeighsActivations) {
  StageCosts costs = even_costs(4);
  costs.activation_bytes = {10, 20, 30, 40};
  costs.weight_bytes = {1, 2, 3, 100};
  Schedule folded{.name = "folded", .num_ranks = 2, .num_chunks = 2, .stage_of = {{0, 3}, {1, 2}}, .actions = {}};
  folded.actions = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {W, 0, 1}, {B, 0, 0}, {W, 0, 0}},
                    {{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {B, 0, 0}, {W, 0, 0}, {W, 0, 1}}};
  const Timeline timeline = simulate(folded, costs);
  EXPECT_EQ(timeline.ranks[0].peak_bytes, 110);  // 10 of stage 0, 100 that the backward of stage 3 leaves
  EXPECT_EQ(timeline.ranks[1].peak_bytes, 50);
  EXPECT_EQ(timeline.ranks[1].peak_in_flight, 2);
  // The second forward meets what the first left for its weight gradient.
  Schedule late{.name = "late", .num_microbatches = 2, .stage_of = {{0}}, .actions = {}};
  late.actions = {{{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}, {W, 0, 0}, {W, 1, 0}}};
  StageCosts one = even_costs(1);
  one.activation_bytes = {10};
  one.weight_bytes = {4};
  EXPECT_EQ(simulate(late, one).peak_bytes, 14);
  EXPECT_EQ(simulate(one_forward_one_backward(4, 8), even_costs(4, 1, 1, 1, 0, 7)).peak_bytes, 28);
}

TEST(Simulate, ForwardOnlyKeepsNothing) {
  const Timeline timeline = simulate(forward_only(3, 5), even_costs(3, 2, 1, 1, 0, 9));
  EXPECT_EQ(timeline.span, 2 * (5 + 2));
  EXPECT_EQ(timeline.peak_bytes, 9);
  EXPECT_EQ(timeline.ranks[1].peak_in_flight, 1);
}

TEST(Simulate, RefusesWhatHasNoMeaning) {
  const Schedule schedule = one_forward_one_backward(2, 2);
  EXPECT_THROW(simulate(schedule, even_costs(3)), base::InternalError);
  StageCosts costs = even_costs(2);
  costs.transfer = {0};
  EXPECT_THROW(simulate(schedule, costs), base::InternalError);
  EXPECT_THROW(simulate(schedule, even_costs(2, -1)), base::InternalError);
  EXPECT_THROW(simulate(schedule, even_costs(2, 1, 1, 1, std::nan(""))), base::InternalError);
  Schedule broken = schedule;
  broken.actions[0].pop_back();
  EXPECT_THROW(simulate(broken, even_costs(2)), base::InternalError);
  EXPECT_THROW(transfers(broken), base::InternalError);
  EXPECT_EQ(simulate(schedule, even_costs(2, 0, 0, 0)).bubble, 0);
}

// Random costs: time adds up, an action starts exactly when its rank is free and its input there, never before.
TEST(Simulate, KeepsEveryDependency) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> cost(0.1, 2);
  for (int trial = 0; trial < 60; ++trial) {
    const int ranks = 1 + trial % 6;
    for (const Schedule& schedule : one_of_each(ranks, 2 * ranks + trial % 5)) {
      StageCosts costs = even_costs(ranks * schedule.num_chunks);
      for (auto* values : {&costs.forward, &costs.backward, &costs.weight, &costs.transfer}) {
        for (double& value : *values) value = cost(random);
      }
      const Timeline timeline = simulate(schedule, costs);
      std::map<std::pair<int, int>, double> arrival;  // (rank, position) -> when the input from another rank is there
      for (const Transfer& transfer : transfers(schedule)) {
        const TimedAction& from = timeline.ranks[transfer.from.rank].actions[transfer.from.position];
        const TimedAction& to = timeline.ranks[transfer.to.rank].actions[transfer.to.position];
        arrival[{transfer.to.rank, transfer.to.position}] = from.end + costs.transfer[std::min(from.stage, to.stage)];
      }
      double busy = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankTimeline& line = timeline.ranks[rank];
        EXPECT_NEAR(line.busy + line.idle(), timeline.span, 1e-9);
        double free = 0;
        for (int position = 0; position < static_cast<int>(line.actions.size()); ++position) {
          const auto found = arrival.find({rank, position});
          EXPECT_EQ(line.actions[position].start, std::max(free, found == arrival.end() ? 0 : found->second));
          free = line.actions[position].end;
        }
        busy += line.busy;
      }
      EXPECT_NEAR(timeline.bubble, (timeline.span * ranks - busy) / (timeline.span * ranks), 1e-9);
    }
  }
}

TEST(Transfers, AreThoseOfTheDependencies) {
  const Schedule schedule = one_forward_one_backward(2, 2);  // rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1
  EXPECT_THAT(transfers(schedule), ElementsAre(Transfer{{0, 0, {F, 0, 0}}, {1, 0, {F, 0, 0}}, 0, 0},
                                               Transfer{{0, 1, {F, 1, 0}}, {1, 2, {F, 1, 0}}, 1, 1},
                                               Transfer{{1, 1, {B, 0, 0}}, {0, 2, {B, 0, 0}}, 0, 0},
                                               Transfer{{1, 3, {B, 1, 0}}, {0, 3, {B, 1, 0}}, 1, 1}));
  EXPECT_THAT(transfers(zero_bubble_v(1, 4)), IsEmpty());
}

// Each boundary between stages of different ranks is crossed once by every microbatch's forward and once by its
// backward.
TEST(Transfers, CrossEachBoundaryOnce) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const Schedule& schedule : one_of_each(ranks, 2 * ranks + 3)) {
      std::set<std::tuple<Phase, int, int>> crossed;  // phase, microbatch, the boundary's lower stage
      std::map<std::pair<int, int>, std::set<int>> send_orders, receive_orders;
      for (const Transfer& transfer : transfers(schedule)) {
        const auto& [from, to, send_order, receive_order] = transfer;
        EXPECT_NE(from.rank, to.rank);
        EXPECT_EQ(schedule.actions[from.rank][from.position], from.action);
        EXPECT_EQ(schedule.actions[to.rank][to.position], to.action);
        EXPECT_EQ(from.action.phase, to.action.phase);
        EXPECT_EQ(from.action.microbatch, to.action.microbatch);
        const int from_stage = schedule.stage_of[from.rank][from.action.chunk];
        const int to_stage = schedule.stage_of[to.rank][to.action.chunk];
        EXPECT_EQ(to_stage, from_stage + (from.action.phase == F ? 1 : -1));
        EXPECT_TRUE(
            (crossed.insert({from.action.phase, from.action.microbatch, std::min(from_stage, to_stage)}).second));
        EXPECT_TRUE((send_orders[{from.rank, to.rank}].insert(send_order).second));
        EXPECT_TRUE((receive_orders[{from.rank, to.rank}].insert(receive_order).second));
      }
      EXPECT_EQ(send_orders, receive_orders);  // both number the pair's transfers from 0
      for (const auto& [pair, orders] : send_orders) EXPECT_EQ(*orders.rbegin(), static_cast<int>(orders.size()) - 1);
      const bool is_folded = schedule.name == "zbv" || schedule.name == "dualpipev";
      const int num_boundaries = is_folded ? 2 * (ranks - 1) : (ranks == 1 ? 0 : ranks * schedule.num_chunks - 1);
      EXPECT_EQ(crossed.size(), static_cast<std::size_t>(2 * num_boundaries * schedule.num_microbatches))
          << schedule.name;
    }
  }
}

// With one chunk a channel may keep the order of its messages; a folded schedule carries forwards of one chunk and
// backwards of the other on one channel, in an order of their own on each side.
TEST(Transfers, OrdersDifferOnlyWhenFolded) {
  const auto differ = [](const Schedule& schedule) {
    const auto all = transfers(schedule);
    return std::any_of(all.begin(), all.end(), [](const Transfer& one) { return one.send_order != one.receive_order; });
  };
  EXPECT_FALSE(differ(gpipe(4, 8)));
  EXPECT_FALSE(differ(one_forward_one_backward(4, 8)));
  EXPECT_FALSE(differ(zero_bubble_1p(4, 8)));
  EXPECT_TRUE(differ(zero_bubble_v(4, 8)));
}

}  // namespace
}  // namespace pharos::pipeline
