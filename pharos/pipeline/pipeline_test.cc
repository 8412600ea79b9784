#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/pipeline/schedule.h"
#include "pharos/pipeline/test_damage.h"

namespace pharos::pipeline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Phase F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

// Every order of F and B equals Megatron's for one model chunk.
TEST(OneForwardOneBackward, EqualsMegatron) {
  int num_compared = 0;
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/schedule.json");
  for (const auto& expected : oracle.at("cases")) {
    if (expected.at("num_model_chunks") != 1) continue;
    const Schedule schedule = one_forward_one_backward(expected.at("pp"), expected.at("num_microbatches"));
    ASSERT_EQ(schedule.actions.size(), expected.at("ranks").size());
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      std::vector<Action> steps;
      for (const auto& step : expected.at("ranks")[rank].at("steps")) {
        steps.push_back({step[0] == "F" ? F : B, step[1], step[2]});
      }
      EXPECT_EQ(schedule.actions[rank], steps) << "rank " << rank;
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 8);
}

TEST(OneForwardOneBackward, OneRankAlternates) {
  EXPECT_THAT(one_forward_one_backward(1, 2).actions[0],
              ElementsAre(Action{F, 0, 0}, Action{B, 0, 0}, Action{F, 1, 0}, Action{B, 1, 0}));
}

// Microbatches whose forward ran and whose backward did not, at most: min(ranks - rank, microbatches).
int peak_of(const std::vector<Action>& actions) {
  int in_flight = 0, peak = 0;
  for (const Action& action : actions) peak = std::max(peak, in_flight += action.phase == F ? 1 : -1);
  return peak;
}

TEST(OneForwardOneBackward, IsSoundAndBoundsMemoryForEveryShape) {
  for (int num_ranks = 1; num_ranks <= 9; ++num_ranks) {
    for (int num_microbatches = 1; num_microbatches <= 20; ++num_microbatches) {
      const Schedule schedule = one_forward_one_backward(num_ranks, num_microbatches);
      EXPECT_THAT(check(schedule), IsEmpty()) << num_ranks << " ranks, " << num_microbatches << " microbatches";
      for (int rank = 0; rank < num_ranks; ++rank) {
        EXPECT_EQ(peak_of(schedule.actions[rank]), std::min(num_ranks - rank, num_microbatches));
      }
    }
  }
}

TEST(ForwardOnly, IsSoundAndHasNoBackward) {
  for (const auto& [num_ranks, num_microbatches] : {std::pair{1, 1}, {1, 7}, {4, 2}, {5, 11}}) {
    const Schedule schedule = forward_only(num_ranks, num_microbatches);
    EXPECT_THAT(check(schedule), IsEmpty());
    for (const auto& actions : schedule.actions) {
      EXPECT_EQ(actions.size(), static_cast<std::size_t>(num_microbatches));
      EXPECT_TRUE(std::all_of(actions.begin(), actions.end(), [](const Action& action) { return action.phase == F; }));
    }
  }
}

TEST(Generators, RefuseEmptyShapes) {
  EXPECT_THROW(one_forward_one_backward(0, 1), base::InternalError);
  EXPECT_THROW(one_forward_one_backward(1, 0), base::InternalError);
  EXPECT_THROW(forward_only(2, 0), base::InternalError);
}

Schedule two_ranks(std::vector<Action> first, std::vector<Action> second) {
  Schedule schedule{.name = "by hand", .num_ranks = 2, .stage_of = {{0}, {1}}, .actions = {}};
  for (const Action& action : first)
    schedule.num_microbatches = std::max(schedule.num_microbatches, action.microbatch + 1);
  schedule.actions = {std::move(first), std::move(second)};
  return schedule;
}

TEST(Check, NamesEachFault) {
  const std::vector<Action> sound = {{F, 0, 0}, {B, 0, 0}};
  struct Case {
    std::vector<Action> first, second;
    const char* fault;
  };
  const Case cases[] = {
      {{{F, 0, 0}}, sound, "rank 0: B(microbatch 0, chunk 0) is missing"},
      {{{F, 0, 0}, {F, 0, 0}, {B, 0, 0}}, sound, "rank 0: F(microbatch 0, chunk 0) is doubled"},
      {{{B, 0, 0}, {F, 0, 0}}, sound, "rank 0: B(microbatch 0, chunk 0) is not preceded by F(microbatch 0, chunk 0)"},
      {sound, {{F, 0, 0}, {B, 0, 0}, {W, 0, 0}}, "rank 0: W(microbatch 0, chunk 0) is missing"},
      {sound,
       {{F, 0, 0}, {W, 0, 0}, {B, 0, 0}},
       "rank 1: W(microbatch 0, chunk 0) is not preceded by B(microbatch 0, chunk 0)"},
      {sound, {{F, 0, 0}, {B, 0, 0}, {F, 3, 0}}, "rank 1: F(microbatch 3, chunk 0) is outside the schedule"},
      {{{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}},
       {{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}},
       "rank 0: B(microbatch 0, chunk 0) waits for ever on the backward of stage 1"},
      {{{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}},
       {{F, 0, 0}, {F, 1, 0}, {B, 0, 0}, {B, 1, 0}},
       "rank 1: F(microbatch 1, chunk 0) waits for ever on the forward of stage 0"},
  };
  EXPECT_THAT(check(two_ranks(sound, sound)), IsEmpty());
  for (const Case& c : cases) EXPECT_THAT(check(two_ranks(c.first, c.second)), Contains(c.fault));
}

TEST(Check, RefusesWrongShapes) {
  Schedule schedule = one_forward_one_backward(2, 2);
  schedule.stage_of = {{0}, {0}};
  EXPECT_THAT(check(schedule), Contains("stage 0 is held twice"));
  schedule.stage_of = {{0}, {5}};
  EXPECT_THAT(check(schedule), Contains("rank 1 holds stage 5, outside 0..1"));
  schedule.stage_of = {{0}};
  EXPECT_THAT(check(schedule), Contains(HasSubstr("2 ranks, but stages of 1")));
}

// A folded placement (rank r holds stages r and 2*ranks-1-r) with weight actions passes.
TEST(Check, AcceptsChunksAndWeights) {
  Schedule schedule{.name = "folded", .num_ranks = 2, .num_chunks = 2, .stage_of = {{0, 3}, {1, 2}}, .actions = {}};
  schedule.actions = {{{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {W, 0, 1}, {B, 0, 0}, {W, 0, 0}},
                      {{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {B, 0, 0}, {W, 0, 0}, {W, 0, 1}}};
  EXPECT_THAT(check(schedule), IsEmpty());
}

// A random change of a sound schedule (drop, double, or swap of an action with its dependant) is found.
TEST(Check, FindsRandomDamage) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    Schedule schedule = one_forward_one_backward(1 + static_cast<int>(testing::below(random, 6)),
                                                 2 + static_cast<int>(testing::below(random, 10)));
    testing::damage(schedule, random);
    EXPECT_FALSE(check(schedule).empty()) << "trial " << trial;
  }
}

}  // namespace
}  // namespace pharos::pipeline
