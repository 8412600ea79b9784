#include "pharos/optim/schedule/batch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/config/derived.h"

namespace pharos::optim {
namespace {

using ::testing::HasSubstr;

TEST(BatchSchedule, EqualsMegatron) {
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/batches.json");
  int num_compared = 0;
  for (const auto& expected : oracle.at("cases")) {
    const auto& args = expected.at("args");
    BatchScheduleOptions options;
    if (!args.at("global_batch_size").is_null()) options.global_batch_size = args.at("global_batch_size");
    options.micro_batch_size = args.at("micro_batch_size");
    options.data_parallel_size = args.at("data_parallel_size");
    options.decrease_batch_size_if_needed = args.at("decrease_batch_size_if_needed");
    if (args.contains("step_batch_size_schedule"))
      options.step_batch_size_schedule = args.at("step_batch_size_schedule");
    options.seq_length = args.value("seq_length", 0);
    const BatchSchedule schedule(options);
    for (const auto& value : expected.at("values")) {
      const BatchSize size{value.at("num_microbatches"), value.at("current_global_batch_size"),
                           value.at("running_global_batch_size")};
      EXPECT_EQ(schedule.at(value.at("consumed_samples")), size) << expected.at("name") << ' ' << value;
      ++num_compared;
    }
  }
  EXPECT_EQ(num_compared, 11);
}

// Without a sequence length the thresholds are samples.
TEST(BatchSchedule, StepsInSamples) {
  const BatchSchedule schedule(
      {.micro_batch_size = 1, .data_parallel_size = 4, .step_batch_size_schedule = "0:8, 1K:16"});
  EXPECT_EQ(schedule.at(999).current_global_batch_size, 8);
  EXPECT_EQ(schedule.at(1000).current_global_batch_size, 16);
}

// Megatron's rule before it dropped ramp-up: start + int(consumed / (samples / increments)) · increment, capped.
std::int64_t ramp_size(std::int64_t size, std::int64_t start, std::int64_t increment, std::int64_t samples,
                       std::int64_t consumed) {
  if (consumed > samples) return size;
  const std::int64_t num_increments = (size - start) / increment;
  const double samples_each = static_cast<double>(samples) / static_cast<double>(num_increments);
  return std::min(size, start + static_cast<std::int64_t>(static_cast<double>(consumed) / samples_each) * increment);
}

TEST(BatchSchedule, RampUpEqualsItsFormula) {
  struct Case {
    std::int64_t size, start, increment, samples;
  };
  for (const Case& c :
       {Case{64, 16, 16, 1000}, {32, 4, 4, 97}, {1536, 32, 32, 7321}, {40, 8, 8, 3}, {256, 128, 128, 1}}) {
    const BatchSchedule schedule({.global_batch_size = c.size,
                                  .micro_batch_size = 2,
                                  .data_parallel_size = 2,
                                  .rampup_batch_size = {{c.start, c.increment, c.samples}}});
    for (std::int64_t consumed = 0; consumed <= c.samples + 10; ++consumed) {
      const std::int64_t size = ramp_size(c.size, c.start, c.increment, c.samples, consumed);
      ASSERT_EQ(schedule.at(consumed), (BatchSize{size / 4, size, size})) << "consumed " << consumed;
    }
  }
}

TEST(BatchSchedule, RampUpRoundsDownIfAsked) {
  const BatchSchedule schedule({.global_batch_size = 30,
                                .micro_batch_size = 2,
                                .data_parallel_size = 4,
                                .decrease_batch_size_if_needed = true,
                                .rampup_batch_size = {{10, 10, 100}}});
  EXPECT_EQ(schedule.at(0), (BatchSize{1, 10, 8}));
  EXPECT_EQ(schedule.at(50), (BatchSize{2, 20, 16}));
  EXPECT_EQ(schedule.at(100), (BatchSize{3, 30, 24}));
}

// samples_after(n) == consumed samples of a loop that takes at() for each of n steps.
TEST(BatchSchedule, SamplesAfterEqualsTheLoop) {
  const BatchScheduleOptions cases[] = {
      {.global_batch_size = 24, .micro_batch_size = 2, .data_parallel_size = 2},
      {.global_batch_size = 30, .micro_batch_size = 4, .decrease_batch_size_if_needed = true},
      {.global_batch_size = 64, .rampup_batch_size = {{16, 16, 1000}}},
      {.global_batch_size = 64, .rampup_batch_size = {{8, 8, 3}}},
      {.step_batch_size_schedule = "0:16 1K:48 5K:7", .seq_length = 8},
  };
  for (const auto& options : cases) {
    const BatchSchedule schedule(options);
    std::int64_t consumed = 0;
    for (std::int64_t step = 0; step < 200; ++step) {
      ASSERT_EQ(schedule.samples_after(step), consumed) << "step " << step;
      consumed += schedule.at(consumed).running_global_batch_size;
    }
    EXPECT_EQ(schedule.samples_after(-1), 0);
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no UserError";
}

TEST(BatchSchedule, RefusesWhatCannotRun) {
  struct Case {
    BatchScheduleOptions options;
    const char* words;
  };
  const Case cases[] = {
      {{.global_batch_size = 100, .micro_batch_size = 2, .data_parallel_size = 8},
       "global batch size (100) is not divisible by micro batch size (2) times data parallel size (8)"},
      {{.global_batch_size = 15, .micro_batch_size = 2, .data_parallel_size = 8, .decrease_batch_size_if_needed = true},
       "Rounded down it would be 0 samples"},
      {{.global_batch_size = 0}, "global batch size (0)"},
      {{.global_batch_size = 64, .rampup_batch_size = {{16, 7, 100}}}, "does not reach train.global_batch_size = 64"},
      {{.global_batch_size = 64, .rampup_batch_size = {{128, 16, 100}}}, "does not reach"},
      {{.global_batch_size = 64, .rampup_batch_size = {{0, 16, 100}}}, "at least 1"},
      {{.global_batch_size = 64, .rampup_batch_size = {{16, 0, 100}}}, "at least 1"},
      {{.global_batch_size = 64, .micro_batch_size = 32, .rampup_batch_size = {{16, 16, 100}}},
       "global batch size (16)"},
      {{.global_batch_size = 64, .rampup_batch_size = {{16, 16, 100}}, .step_batch_size_schedule = "0:8"}, "both set"},
      {{.data_parallel_size = 4, .step_batch_size_schedule = "0:8 1K:6"}, "global batch size (6)"},
      {{.step_batch_size_schedule = "1K:8"}, "threshold 0"},
      {{.step_batch_size_schedule = "0:8 5:x"}, "size is no positive integer"},
      {{.step_batch_size_schedule = "0:8 5Q:9"}, "no count of tokens"},
      {{.step_batch_size_schedule = "0:8 5:9 5:10"}, "do not increase"},
      {{.step_batch_size_schedule = "0:8 9"}, "without a colon"},
      {{.step_batch_size_schedule = " "}, "is empty"},
  };
  for (const Case& c : cases) EXPECT_THAT(message_of([&] { BatchSchedule{c.options}; }), HasSubstr(c.words));
}

TEST(BatchScheduleOptions, FollowFromTheConfiguration) {
  config::RunConfig config;
  config.train.global_batch_size = 32;
  config.train.micro_batch_size = 2;
  config.train.rampup_batch_size = {8, 8, 100};
  config.dataset.seq_length = 128;
  const BatchScheduleOptions options = batch_schedule_options(config, 4);
  EXPECT_EQ(BatchSchedule(options).at(0), (BatchSize{1, 8, 8}));
  EXPECT_EQ(BatchSchedule(options).at(100), (BatchSize{4, 32, 32}));
  EXPECT_EQ(options.seq_length, 128);
  for (std::int64_t consumed = 0; consumed < 120; ++consumed) {
    EXPECT_EQ(BatchSchedule(options).at(consumed).running_global_batch_size,
              config::global_batch_size_at(config, consumed, 4));
  }
  config.train.rampup_batch_size = {8, 8};
  EXPECT_THROW(batch_schedule_options(config, 4), base::UserError);
}

}  // namespace
}  // namespace pharos::optim
