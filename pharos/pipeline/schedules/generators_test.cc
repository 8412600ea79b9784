#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/pipeline/schedule.h"
#include "pharos/pipeline/simulate.h"
#include "pharos/pipeline/test_damage.h"

namespace pharos::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Phase F = Phase::kForward, B = Phase::kBackward;

// Every order of F and B of interleaved schedules equals Megatron's; so does that of one chunk through the same door.
TEST(Interleaved, EqualsMegatron) {
  int num_compared = 0;
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/schedule.json");
  for (const auto& expected : oracle.at("cases")) {
    const Schedule schedule =
        interleaved(expected.at("pp"), expected.at("num_model_chunks"), expected.at("num_microbatches"),
                    expected.at("microbatch_group_size_per_vp_stage"));
    ASSERT_EQ(schedule.actions.size(), expected.at("ranks").size());
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      std::vector<Action> steps;
      for (const auto& step : expected.at("ranks")[rank].at("steps")) {
        steps.push_back({step[0].get<std::string>() == "F" ? F : B, step[1], step[2]});
      }
      EXPECT_EQ(schedule.actions[rank], steps) << expected.at("pp") << " ranks, rank " << rank;
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 20);
}

// ZBV, DualPipeV and interleaved 1F1B in the order of PyTorch's torch.distributed.pipelining (make_pytorch_orders.py).
TEST(Generators, EqualPyTorch) {
  int num_compared = 0;
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/pipeline/pytorch_orders.json");
  for (const auto& expected : oracle.at("schedules")) {
    const std::string name = expected.at("name");
    const Schedule schedule =
        make_schedule(name, {expected.at("ranks"), expected.at("chunks"), expected.at("microbatches")});
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      std::vector<std::string> words;
      for (const Action& action : schedule.actions[rank]) words.push_back(notation(action));
      EXPECT_EQ(base::join(words, " "), expected.at("actions")[rank].get<std::string>()) << name << ", rank " << rank;
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 54);
}

struct Shape {
  int num_ranks, num_chunks, num_microbatches, group;
};

// What the header promises of a schedule, each with T_F = T_B = T_W = 1 for a rank's share of the model.
struct Promise {
  const char* name;
  std::vector<int> num_chunks;
  std::function<bool(const Shape&)> is_allowed;
  std::function<int(const Shape&, int rank)> peak;  ///< chunk activations
  bool is_exact_peak;
};

bool any_count(const Shape&) { return true; }

bool interleaved_count(const Shape& shape) {
  if (shape.num_chunks == 1) return true;
  const int remainder = shape.num_microbatches % shape.group;
  return shape.group <= shape.num_microbatches && (remainder == 0 || remainder >= shape.num_ranks);
}

const Promise kPromises[] = {
    {"gpipe", {1}, any_count, [](const Shape& s, int) { return s.num_microbatches; }, true},
    {"1f1b",
     {1},
     any_count,
     [](const Shape& s, int rank) { return std::min(s.num_ranks - rank, s.num_microbatches); },
     true},
    {"interleaved",
     {1, 2, 3, 4},
     interleaved_count,
     [](const Shape& s, int rank) {
       if (s.num_chunks == 1) return std::min(s.num_ranks - rank, s.num_microbatches);
       return std::min(2 * (s.num_ranks - 1 - rank) + (s.num_chunks - 1) * s.group + 1,
                       s.num_chunks * s.num_microbatches);
     },
     true},
    {"zb1p", {1}, any_count, [](const Shape& s, int) { return std::min(s.num_ranks, s.num_microbatches); }, false},
    {"zbv",
     {2},
     any_count,
     [](const Shape& s, int) { return std::min(2 * s.num_ranks, 2 * s.num_microbatches); },
     false},
    {"dualpipev",
     {2},
     [](const Shape& s) { return s.num_microbatches >= 2 * s.num_ranks; },
     [](const Shape& s, int) { return 2 * s.num_ranks + 1; },
     false},
};

Schedule generate(const Promise& promise, const Shape& shape) {
  return make_schedule(promise.name, {shape.num_ranks, shape.num_chunks, shape.num_microbatches, shape.group});
}

// Every shape of up to 8 ranks, 4 chunks and 32 microbatches (and some group sizes) is sound and within the published
// memory, or is refused.
TEST(Generators, AreSoundAndWithinMemoryForEveryShape) {
  int num_sound = 0;
  for (const Promise& promise : kPromises) {
    for (const int num_chunks : promise.num_chunks) {
      for (int num_ranks = 1; num_ranks <= 8; ++num_ranks) {
        for (int num_microbatches = 1; num_microbatches <= 32; ++num_microbatches) {
          for (const int more : {0, 1, 3}) {
            const Shape shape{num_ranks, num_chunks, num_microbatches, num_ranks + more};
            if (!promise.is_allowed(shape)) {
              EXPECT_THROW(generate(promise, shape), base::UserError);
              continue;
            }
            const Schedule schedule = generate(promise, shape);
            SCOPED_TRACE(std::string(promise.name) + " ranks " + std::to_string(num_ranks) + " chunks " +
                         std::to_string(num_chunks) + " microbatches " + std::to_string(num_microbatches));
            ASSERT_THAT(check(schedule), IsEmpty());
            const std::vector<int> peak = peak_in_flight(schedule);
            for (int rank = 0; rank < num_ranks; ++rank) {
              EXPECT_LE(peak[rank], promise.peak(shape, rank));
              if (promise.is_exact_peak) {
                EXPECT_EQ(peak[rank], promise.peak(shape, rank));
              }
            }
            ++num_sound;
          }
        }
      }
    }
  }
  EXPECT_GT(num_sound, 4000);
}

double unit_span(const Schedule& schedule) {
  const double share = 1.0 / schedule.num_chunks;
  return simulate(schedule, even_costs(schedule.num_ranks * schedule.num_chunks, share, share, share)).span;
}

TEST(Generators, ReachTheirBubble) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 32; ++microbatches) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(microbatches) + " microbatches");
      const double ideal = 3.0 * microbatches, fill = ranks - 1;
      const auto bubble = [](const Schedule& schedule, double forward, double backward, double weight) {
        return simulate(schedule, even_costs(schedule.num_ranks * schedule.num_chunks, forward, backward, weight))
            .bubble;
      };
      for (const double forward : {0.5, 1.0, 4.0}) {
        EXPECT_NEAR(bubble(gpipe(ranks, microbatches), forward, 1, 2), fill / (microbatches + fill), 1e-12);
        EXPECT_NEAR(bubble(one_forward_one_backward(ranks, microbatches), forward, 1, 2), fill / (microbatches + fill),
                    1e-12);
      }
      const double plain = unit_span(one_forward_one_backward(ranks, microbatches));
      EXPECT_NEAR(plain, ideal + 3 * fill, 1e-9);
      for (int chunks = 2; chunks <= 4 && microbatches % ranks == 0; ++chunks) {
        for (const double forward : {0.5, 2.0, 4.0}) {  // a backward takes 2
          EXPECT_NEAR(bubble(interleaved(ranks, chunks, microbatches, ranks), forward, 1, 1),
                      fill / (chunks * microbatches + fill), 1e-12);
        }
      }
      const double zb1p = unit_span(zero_bubble_1p(ranks, microbatches));
      if (microbatches >= ranks) {
        EXPECT_NEAR(zb1p, ideal + fill, 1e-9);
      }
      if (ranks > 1) {
        EXPECT_LT(zb1p, plain);
      }
      const double zbv = unit_span(zero_bubble_v(ranks, microbatches));
      if (microbatches >= 2 * ranks - 1) {
        EXPECT_NEAR(zbv, ideal + fill / 2, 1e-9);
      }
      if (ranks > 1) {
        EXPECT_LT(zbv, plain);
      }
      if (microbatches >= 2 * ranks) {
        const double dual = unit_span(dual_pipe_v(ranks, microbatches));
        EXPECT_LE(dual, ideal + fill + 1e-9);
        EXPECT_LE(zbv, dual + 1e-9);
        if (ranks > 1) {
          EXPECT_LT(dual, plain);
        }
      }
    }
  }
}

// "Zero bubble": between its first and its last action no rank of ZB-V waits, with 1F1B's memory and half-sized chunks.
TEST(ZeroBubbleV, NeverWaits) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (const int microbatches : {2 * ranks - 1, 2 * ranks, 32}) {
      const Timeline timeline = simulate(zero_bubble_v(ranks, microbatches), even_costs(2 * ranks));
      for (const RankTimeline& line : timeline.ranks) EXPECT_EQ(line.idle_stage + line.idle_transfer, 0);
    }
  }
}

TEST(Generators, FoldTheirStages) {
  for (const Schedule& schedule : {zero_bubble_v(3, 6), dual_pipe_v(3, 6)}) {
    EXPECT_THAT(schedule.stage_of, ElementsAre(ElementsAre(0, 5), ElementsAre(1, 4), ElementsAre(2, 3)));
  }
  EXPECT_THAT(interleaved(2, 3, 4, 2).stage_of, ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
}

template <typename Call>
std::string user_error(Call call) {
  try {
    call();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Generators, SayWhichMicrobatchCountsAreAllowed) {
  struct Case {
    std::function<Schedule()> generate;
    std::vector<const char*> parts;
  };
  const Case cases[] = {
      {[] { return interleaved(4, 2, 9, 4); },
       {"interleaved schedule on 4 pipeline ranks cannot run 9 microbatches", "at least 4",
        "Use 8 or 12 microbatches"}},
      {[] { return interleaved(2, 2, 7, 3); }, {"remainder of at least 2", "Use 6 or 8 microbatches"}},
      {[] { return interleaved(4, 2, 3, 4); }, {"cannot run 3 microbatches", "Use 4 microbatches"}},
      {[] { return interleaved(4, 2, 8, 3); },
       {"microbatch_group_size_per_vp_stage = 3", "Use 4 (the default) or more"}},
      {[] { return dual_pipe_v(4, 7); },
       {"dualpipev schedule on 4 pipeline ranks", "at least 8", "Use 8 microbatches"}},
      {[] { return make_schedule("zbv", {.num_ranks = 2, .num_chunks = 1}); },
       {"The zbv schedule has 2 model chunks per rank, not 1", "virtual_pipeline_model_parallel_size", "Use 2"}},
      {[] { return make_schedule("1f1b", {.num_ranks = 2, .num_chunks = 3}); },
       {"has 1 model chunk per rank, not 3", "interleaved"}},
      {[] { return make_schedule("zb2p", {}); }, {"There is no schedule 'zb2p'", "zb1p"}},
      {[] { return make_schedule("something else", {}); },
       {"Use one of gpipe, 1f1b, interleaved, zb1p, zbv, dualpipev"}},
  };
  for (const Case& c : cases) {
    const std::string message = user_error(c.generate);
    for (const char* part : c.parts) EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(Generators, RefuseShapesOfNothing) {
  for (const std::string& name : schedule_names()) {
    const int chunks = name.starts_with("zbv") || name == "dualpipev" || name == "interleaved" ? 2 : 1;
    EXPECT_THROW(make_schedule(name, {.num_ranks = 0, .num_chunks = chunks}), base::InternalError) << name;
    EXPECT_THROW(make_schedule(name, {.num_ranks = 1, .num_chunks = chunks, .num_microbatches = 0}),
                 base::InternalError);
  }
}

TEST(Check, BoundsMemory) {
  EXPECT_THAT(check(gpipe(2, 5), 5), IsEmpty());
  EXPECT_THAT(check(gpipe(2, 5), 4), ElementsAre("rank 0: 5 chunk activations in flight, more than 4",
                                                 "rank 1: 5 chunk activations in flight, more than 4"));
  EXPECT_THAT(check(one_forward_one_backward(3, 5), 2),
              ElementsAre("rank 0: 3 chunk activations in flight, more than 2"));
}

// Damage to any schedule (drop, double, swap with the action that needs it) is found.
TEST(Check, FindsDamageInEverySchedule) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 600; ++trial) {
    const int ranks = 1 + static_cast<int>(testing::below(random, 6)),
              microbatches = 2 * ranks + static_cast<int>(testing::below(random, 9));
    const Promise& promise = kPromises[testing::below(random, std::size(kPromises))];
    const int chunks = promise.num_chunks.back();
    const Shape shape{ranks, chunks, chunks > 2 ? 2 * ranks : microbatches, ranks};
    Schedule schedule = generate(promise, shape);
    testing::damage(schedule, random);
    EXPECT_FALSE(check(schedule).empty()) << promise.name << ", trial " << trial;
  }
}

}  // namespace
}  // namespace pharos::pipeline
