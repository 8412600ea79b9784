#include "pharos/train/time_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "pharos/base/error.h"
#include "pharos/train/exit_policy.h"

namespace pharos::train {
namespace {

using testing::HasSubstr;

TEST(TimeLimit, LauncherComesBeforeSlurm) {
  struct Case {
    std::map<std::string, std::string> variables;
    std::optional<double> end;
    const char* warning = "";
  };
  const Case kCases[] = {
      {{}, std::nullopt},
      {{{"SLURM_JOB_END_TIME", "1700000000"}}, 1700000000},
      {{{"SLURM_JOB_END_TIME", "0"}}, std::nullopt},
      {{{"SLURM_JOB_END_TIME", "Unknown"}}, std::nullopt, "SLURM_JOB_END_TIME = Unknown is not a time"},
      {{{"SLURM_JOB_END_TIME", "x\n1"}}, std::nullopt, "= x\\n1 is not a time"},
      {{{"SLURM_JOB_END_TIME", "1e999"}}, std::nullopt, "no time limit is kept"},
      {{{"SLURM_JOB_END_TIME", "-7"}}, std::nullopt, "no time limit is kept"},
      {{{"SLURM_JOB_END_TIME", "5"}, {"PHAROS_TIME_LIMIT_END", " 1700000000.5 "}}, 1700000000.5},
      {{{"SLURM_JOB_END_TIME", "5"}, {"PHAROS_TIME_LIMIT_END", ""}}, 5},
  };
  for (const Case& c : kCases) {
    std::string warning;
    const auto end = find_time_limit_end(lens::MapEnvironment(c.variables), warning);
    EXPECT_EQ(end, c.end) << testing::PrintToString(c.variables);
    EXPECT_THAT(warning, HasSubstr(c.warning));
    EXPECT_EQ(warning.empty(), *c.warning == '\0') << warning;
  }
  for (const char* wrong : {"soon", "12:00", "1e999", "nan", "-3", "0"}) {
    const lens::MapEnvironment environment(std::map<std::string, std::string>{{"PHAROS_TIME_LIMIT_END", wrong}});
    std::string warning;
    EXPECT_THROW(find_time_limit_end(environment, warning), base::UserError) << wrong;
  }
}

TEST(TimeLimit, DurationsAreTheLongestMeasured) {
  Durations durations(500'000'000);
  EXPECT_EQ(durations.step_s(), 0);
  EXPECT_EQ(durations.save_s(), 5);  // 100 MB/s
  EXPECT_EQ(durations.evaluation_s(DataSplit::kValidation, 100, 10), 0);
  durations.add_step(60);  // with one-time work
  EXPECT_EQ(durations.step_s(), 60);
  durations.add_step(2);
  EXPECT_EQ(durations.step_s(), 2);
  EXPECT_EQ(durations.evaluation_s(DataSplit::kValidation, 100, 10), 10);  // ten steps' worth of half a step
  for (int i = 0; i < 10; ++i) durations.add_step(1);
  EXPECT_EQ(durations.step_s(), 1);
  durations.add_save(1);
  EXPECT_EQ(durations.save_s(), 1);
  durations.add_save(3);
  durations.add_save(2);
  EXPECT_EQ(durations.save_s(), 3);
  durations.add_evaluation(DataSplit::kValidation, 7);
  EXPECT_EQ(durations.evaluation_s(DataSplit::kValidation, 100, 10), 7);
  EXPECT_EQ(durations.evaluation_s(DataSplit::kTest, 100, 10), 7);
  durations.add_evaluation(DataSplit::kTest, 4);
  EXPECT_EQ(durations.evaluation_s(DataSplit::kTest, 100, 10), 4);
}

TEST(TimeLimit, StopsWhileThereIsTimeForAStepASaveAndTheMargin) {
  config::TrainConfig train;
  train.time_limit_margin_seconds = 30;
  const auto decide = [&](double left, double next, double save) {
    return decide_exit(train, 7, {.time_left_s = left, .next_s = next, .save_s = save});
  };
  EXPECT_FALSE(decide(36, 2, 4));
  EXPECT_FALSE(decide_exit(train, 7, {}));
  const auto decision = decide(35.9, 2, 4);
  ASSERT_TRUE(decision);
  EXPECT_EQ(decision->reason, ExitReason::kTimeLimit);
  EXPECT_EQ(decision->cause, "time limit");
  EXPECT_THAT(decision->message, HasSubstr("35.9 s are left"));
  EXPECT_THAT(decision->message, HasSubstr("need 6.0 s"));
  EXPECT_TRUE(decide(-100, 0, 0));
  train.time_limit_margin_seconds = 0;
  EXPECT_FALSE(decide(6, 2, 4));
  // A signal is the better reason.
  EXPECT_EQ(decide_stop(train, {.signal = SIGUSR1, .time_left_s = 0, .next_s = 1, .save_s = 1})->reason,
            ExitReason::kSignal);
}

TEST(Signals, RepeatedOnesOfASchedulerChangeNothing) {
  config::TrainConfig train;
  train.exit_signal_handler = true;
  train.exit_signal = config::ExitSignal::kUsr1;
  const SignalWatch watch(train);
  for (const int signal : {SIGUSR1, SIGTERM, SIGCONT, SIGTERM, SIGUSR1}) ::raise(signal);
  ::raise(SIGINT);  // one of a person is not two
  EXPECT_EQ(SignalWatch::received(), SIGUSR1);
  EXPECT_EQ(SignalWatch::count(), 5);
  EXPECT_EQ(decide_stop(train, {.signal = SignalWatch::received()})->cause, "signal SIGUSR1");
}

TEST(Signals, TakesItsSignalsBack) {
  config::TrainConfig train;
  train.exit_signal_handler = true;
  const SignalWatch watch(train);
  struct sigaction other = {};
  other.sa_handler = SIG_IGN;
  sigaction(SIGTERM, &other, nullptr);
  ::raise(SIGTERM);
  EXPECT_EQ(SignalWatch::received(), 0);
  watch.take();
  ::raise(SIGTERM);
  EXPECT_EQ(SignalWatch::received(), SIGTERM);
}

}  // namespace
}  // namespace pharos::train
