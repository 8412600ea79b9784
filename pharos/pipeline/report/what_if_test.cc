#include "pharos/pipeline/report/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "pharos/config/grammar/pipeline_layout.h"
#include "pharos/pipeline/report/test_measured.h"

namespace pharos::pipeline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Resampled, MergesAndDivides) {
  StageCosts costs = even_costs(4, 1, 1, 1, 0, 8);
  costs.forward = {1, 2, 3, 4};
  costs.transfer = {10, 20, 30, 99};  // the last is no hop
  EXPECT_EQ(resampled(costs, 4).forward, costs.forward);
  const StageCosts merged = resampled(costs, 2);
  EXPECT_THAT(merged.forward, ElementsAre(3, 7));
  EXPECT_THAT(merged.activation_bytes, ElementsAre(16, 16));
  EXPECT_EQ(merged.transfer[0], 20);
  const StageCosts divided = resampled(costs, 8);
  EXPECT_THAT(divided.forward, ElementsAre(0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2));
  EXPECT_THAT(std::vector<double>(divided.transfer.begin(), divided.transfer.end() - 1),
              ElementsAre(20, 10, 20, 20, 20, 30, 20));
  const StageCosts uneven = resampled(costs, 3);  // 1 + 2/3, 4/3 + 2 x 1/2 ..
  EXPECT_DOUBLE_EQ(std::accumulate(uneven.forward.begin(), uneven.forward.end(), 0.0), 10);
  EXPECT_DOUBLE_EQ(uneven.forward[0], 1 + 2.0 / 3);
}

// The loss stays whole: stages of 2 layers x 6 ms, the last with 12 ms more, halved.
TEST(Resampled, LeavesTheExtrasAtTheEnds) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) phase->back() += 4;
  EXPECT_THAT(resampled(costs, 8).forward, ElementsAre(2, 2, 2, 2, 2, 2, 4, 4));
  EXPECT_THAT(resampled(costs, 8, {2, 2, 2, 2}).forward, ElementsAre(2, 2, 2, 2, 2, 2, 2, 6));
  EXPECT_THAT(resampled(costs, 2, {2, 2, 2, 2}).weight, ElementsAre(8, 12));
}

// Layers of 1, 2 and 3 ms forward; the last stage has 4 ms beside its layer. Whole layers move with their times.
TEST(Restaged, LayersKeepTheirTimes) {
  StageCosts costs = even_costs(4, 0, 0, 0, 0, 6);
  costs.forward = {2, 4, 9, 6};
  costs.transfer = {10, 20, 30, 99};
  const std::vector<int> layers{2, 2, 3, 1};
  const double mean_layer = (4.0 + 9) / 5;  // of the middle
  const StageCosts two = restaged(costs, layers, {3, 5});
  EXPECT_THAT(two.forward, ElementsAre(testing::DoubleEq(2 + 2), testing::DoubleEq(2 + 9 + 6)));
  EXPECT_THAT(two.activation_bytes, ElementsAre(6 + 3, 3 + 6 + 6));
  EXPECT_EQ(two.transfer[0], 20);  // not measured: the mean
  const StageCosts five = restaged(costs, layers, {1, 1, 2, 4, 0});
  EXPECT_THAT(five.transfer, ElementsAre(20, 10, 20, 20, testing::_));
  EXPECT_DOUBLE_EQ(five.forward[4], 6 - mean_layer);
  EXPECT_DOUBLE_EQ(std::accumulate(five.forward.begin(), five.forward.end(), 0.0), 21);
  EXPECT_EQ(restaged(costs, layers, layers).forward, costs.forward);
}

TEST(DividedLayers, AreWhole) {
  EXPECT_THAT(divided_layers({2, 6}, 4), ElementsAre(1, 1, 3, 3));
  EXPECT_THAT(divided_layers({5, 4}, 4), ElementsAre(2, 3, 2, 2));
  EXPECT_THAT(divided_layers({1, 2, 3, 4}, 2), ElementsAre(3, 7));
  EXPECT_THAT(divided_layers({3, 3}, 3), ElementsAre(2, 2, 2));
  EXPECT_THAT(divided_layers({0, 1}, 4), ElementsAre(0, 0, 0, 1));
}

TEST(OtherSchedules, AreSimulatedFromTheSameCosts) {
  const StageCosts costs = uneven_costs(3, 1);
  const auto alternatives = other_schedules(one_forward_one_backward(3, 9), costs);
  ASSERT_EQ(alternatives.size(), schedule_names().size() - 1);
  double before = 0;
  for (const Alternative& other : alternatives) {
    EXPECT_NE(other.schedule, "1f1b");
    EXPECT_EQ(other.obstacle, "");
    EXPECT_GE(other.span, before);
    before = other.span;
    const int chunks = other.schedule == "gpipe" || other.schedule == "zb1p" ? 1 : 2;
    ASSERT_EQ(other.num_chunks, chunks) << other.schedule;
    const Timeline timeline =
        simulate(make_schedule(other.schedule, {.num_ranks = 3, .num_chunks = chunks, .num_microbatches = 9}),
                 resampled(costs, 3 * chunks));
    EXPECT_EQ(other.span, timeline.span);
    EXPECT_EQ(other.bubble, timeline.bubble);
  }
  const auto gpipe_row = std::find_if(alternatives.begin(), alternatives.end(),
                                      [](const Alternative& other) { return other.schedule == "gpipe"; });
  EXPECT_EQ(gpipe_row->peak_rank_shares, 9);
}

TEST(OtherSchedules, SayWhatCannotBeRun) {
  const auto alternatives = other_schedules(gpipe(4, 5), even_costs(4));
  EXPECT_THAT(alternatives.back().schedule, "dualpipev");
  EXPECT_THAT(alternatives.back().obstacle, HasSubstr("5 microbatches: the count must be at least 8"));
  EXPECT_EQ(alternatives.back().span, 0);
  EXPECT_EQ(alternatives.front().obstacle, "");
}

/// The text between the double quotes.
std::string layout_in(const std::string& arguments) {
  const std::size_t begin = arguments.find('"') + 1;
  return arguments.substr(begin, arguments.find('"', begin) - begin);
}

// Arguments set exactly the stages that were simulated, from any number of chunks to any.
TEST(OtherSchedules, HaveTheArgumentsOfTheirStages) {
  const std::vector<int> one{1, 2, 3}, two{1, 1, 1, 0, 2, 1};
  for (const auto& [schedule, layers] : {std::pair(one_forward_one_backward(3, 9), one), {zero_bubble_v(3, 9), two}}) {
    const StageCosts costs = uneven_costs(static_cast<int>(layers.size()), 1);
    for (const Alternative& other : other_schedules(schedule, costs, layers)) {
      const std::string arguments = other.arguments + " ";
      EXPECT_THAT(arguments, HasSubstr("model.pipeline_schedule=" + other.schedule + " "));
      const bool has_other_stages = other.num_chunks != schedule.num_chunks;
      ASSERT_EQ(arguments.find('"') != std::string::npos, has_other_stages) << arguments;
      EXPECT_EQ(arguments.find("virtual_pipeline_model_parallel_size=1 ") != std::string::npos,
                has_other_stages && schedule.num_chunks == 2);
      if (!has_other_stages) continue;
      const auto stages = config::parse_pipeline_layout(layout_in(arguments));
      std::vector<int> found;
      for (const std::string& stage : stages)
        found.push_back(static_cast<int>(std::count(stage.begin(), stage.end(), 't')));
      EXPECT_EQ(found, other.layers);
      const Schedule changed =
          make_schedule(other.schedule, {.num_ranks = 3, .num_chunks = other.num_chunks, .num_microbatches = 9});
      EXPECT_EQ(other.span, simulate(changed, restaged(costs, layers, found)).span);
    }
    EXPECT_THAT(other_schedules(schedule, costs).front().arguments, testing::Not(HasSubstr("layout")));
  }
}

// Two layers of 6 ms in each stage; the loss takes as long as 3 ms more, the embedding 1.
TEST(LayerTimes, AreSplitFromTheExtraOfTheEnds) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  costs.forward.front() += 1;
  costs.weight.back() += 3;
  const LayerTimes times = layer_times(costs, {2, 2, 2, 2});
  EXPECT_THAT(times.per_layer, ElementsAre(6, 6, 6, 6));
  EXPECT_DOUBLE_EQ(times.first_extra, 1);
  EXPECT_DOUBLE_EQ(times.last_extra, 3);
}

// Counts that differ: the ends' layers take what the middle's do. An end that is faster has faster layers.
TEST(LayerTimes, FollowTheCounts) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  EXPECT_DOUBLE_EQ(layer_times(costs, {1, 2, 2, 1}).first_extra, 6);
  const LayerTimes times = layer_times(costs, {3, 2, 2, 1});
  EXPECT_DOUBLE_EQ(times.first_extra, 0);
  EXPECT_DOUBLE_EQ(times.per_layer[0], 4);
  // No middle: the first stage has no extra.
  EXPECT_DOUBLE_EQ(layer_times(even_costs(2, 4, 4, 4), {3, 2}).last_extra, 4);
}

// The slow last stage gives a layer away: stage sums 12, 12, 12, 12 + 12 become 18, 12, 12, 18.
TEST(BetterSplit, MovesLayersFromTheSlowStage) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) phase->back() += 4;
  const Schedule schedule = one_forward_one_backward(4, 8);
  const auto split = better_split(schedule, costs, {2, 2, 2, 2});
  ASSERT_TRUE(split.has_value());
  EXPECT_EQ(std::accumulate(split->layers.begin(), split->layers.end(), 0), 8);
  EXPECT_THAT(split->layers, ElementsAre(3, 2, 2, 1));
  StageCosts expected = even_costs(4, 4, 4, 4);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    for (auto* phase : {&expected.forward, &expected.backward, &expected.weight})
      (*phase)[stage] = 2 * split->layers[stage] + (stage == 3 ? 4 : 0);
  }
  EXPECT_NEAR(split->span, simulate(schedule, expected).span, 1e-9);
  EXPECT_LT(split->span, simulate(schedule, costs).span);
  const auto stages = config::parse_pipeline_layout(layout_in(split->arguments));
  ASSERT_EQ(stages.size(), 4U);
  for (std::size_t stage = 0; stage < 4; ++stage)
    EXPECT_EQ(std::count(stages[stage].begin(), stages[stage].end(), 't'), split->layers[stage]);
  EXPECT_EQ(stages.front().front(), 'E');
  EXPECT_EQ(stages.back().back(), 'L');
}

// A rank that is slow for another reason than its layers gets fewer of them.
TEST(BetterSplit, RelievesASlowRank) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) (*phase)[1] *= 2;
  const auto split = better_split(one_forward_one_backward(4, 8), costs, {4, 4, 4, 4});
  ASSERT_TRUE(split.has_value());
  EXPECT_LT(split->layers[1], 4);
}

// In a folded model the first rank has both ends.
TEST(BetterSplit, CountsBothStagesOfARank) {
  StageCosts costs = even_costs(4, 4, 4, 4);
  for (auto* phase : {&costs.forward, &costs.backward, &costs.weight}) phase->back() += 4;
  const auto split = better_split(zero_bubble_v(2, 8), costs, {2, 2, 2, 2});
  ASSERT_TRUE(split.has_value());
  EXPECT_LT(split->layers[0] + split->layers[3], 4);
}

TEST(BetterSplit, IsNotFoundWhereNoneIs) {
  EXPECT_FALSE(better_split(one_forward_one_backward(4, 8), even_costs(4), {2, 2, 2, 2}).has_value());
  EXPECT_FALSE(better_split(gpipe(1, 8), even_costs(1), {2}).has_value());
}

}  // namespace
}  // namespace pharos::pipeline
