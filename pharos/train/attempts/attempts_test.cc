#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/train/attempts/attempt_log.h"
#include "pharos/train/attempts/goodput.h"

namespace pharos::train {
namespace {

using testing::HasSubstr;

class AttemptsTest : public testing::Test {
 protected:
  AttemptsTest() {
    folder_ = std::filesystem::path(testing::TempDir()) /
              ("attempts_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) +
               std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~AttemptsTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string text() { return base::read_file(folder_ / kAttemptsFile); }
  AttemptHistory history() { return parse_attempts(text()); }

  std::filesystem::path folder_;
};

TEST_F(AttemptsTest, StartBeginAndEndAreOneRecord) {
  const lens::MapEnvironment environment({{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "2"}});
  AttemptLog log(folder_);
  EXPECT_FALSE(log.run_id());
  log.start("run-a", {"node1", "node2"}, 4, environment);
  log.begin_steps(10);
  log.current().last_step = 15;
  log.current().last_saved_step = 14;
  log.current().seconds.steps = 2.5;
  log.set_cause("signal SIGTERM");
  log.end(base::ExitCode::kInterrupted);
  log.end(base::ExitCode::kTrainingFailure);  // what comes after the end changes nothing
  const AttemptHistory read = history();
  ASSERT_EQ(read.attempts.size(), 1u);
  const AttemptRecord& record = read.attempts[0];
  EXPECT_EQ(record.number, 1);
  EXPECT_EQ(record.run_id, "run-a");
  EXPECT_EQ(record.job_id, "77");
  EXPECT_EQ(record.restart_count, 2);
  EXPECT_EQ(record.hosts, (std::vector<std::string>{"node1", "node2"}));
  EXPECT_EQ(record.num_ranks, 4);
  EXPECT_EQ(record.first_step, 10);
  EXPECT_EQ(record.last_step, 15);
  EXPECT_EQ(record.last_saved_step, 14);
  EXPECT_EQ(record.cause, "signal SIGTERM");
  EXPECT_EQ(record.exit_code, 4);
  EXPECT_EQ(record.seconds.steps, 2.5);
  EXPECT_GT(record.seconds.start_up, 0);
  EXPECT_LE(record.start, *record.begin);
  EXPECT_LE(*record.begin, *record.end);
  EXPECT_THAT(text(), HasSubstr("\"useful_steps\":4"));
}

TEST_F(AttemptsTest, AFailureIsItsOwnCause) {
  AttemptLog log(folder_);
  log.start("a", {"node"}, 1, lens::MapEnvironment());
  log.set_cause("signal SIGTERM");  // the save that followed it failed
  log.end(base::ExitCode::kTrainingFailure, "The disk is full.\n  second line");
  EXPECT_EQ(history().attempts[0].cause, "training failure");
  EXPECT_EQ(history().attempts[0].exit_code, 3);
  EXPECT_EQ(history().attempts[0].message, "The disk is full.");
}

TEST_F(AttemptsTest, LostAttemptIsClosedByTheNextStart) {
  {
    AttemptLog log(folder_);
    log.start("kept", {"node"}, 1, lens::MapEnvironment());
    log.begin_steps(5);
  }
  const double start = history().attempts[0].start;
  write("metrics.jsonl",
        "{\"step\":5,\"checkpoint_bytes\":1,\"checkpoint_ms\":900}\n"  // of an attempt before
        "{\"step\":6,\"time\":" +
            std::to_string(start + 50) +
            ",\"step_time_ms\":2000,\"data_wait_ms\":500}\n"
            "{\"step\":6,\"checkpoint_bytes\":1,\"checkpoint_ms\":1000}\n"
            "{\"step\":7,\"time\":" +
            std::to_string(start + 60) +
            ",\"step_time_ms\":3000,\"data_wait_ms\":0}\n"
            "{\"step\":7,\"validation_loss\":1,\"evaluation_ms\":250}\n"
            "{\"step\":8,\"ti");
  AttemptLog next(folder_);
  EXPECT_EQ(next.run_id(), "kept");
  ASSERT_EQ(next.notes().size(), 1u);
  EXPECT_THAT(next.notes()[0], HasSubstr("attempt 1 was lost: it ended without a word after step 7"));
  EXPECT_EQ(next.current().number, 2);
  const AttemptRecord record = history().attempts[0];
  EXPECT_EQ(record.cause, "lost");
  EXPECT_FALSE(record.exit_code);
  EXPECT_NEAR(*record.end, start + 60, 1e-3);
  EXPECT_EQ(record.last_step, 7);
  EXPECT_EQ(record.last_saved_step, 6);
  EXPECT_DOUBLE_EQ(record.seconds.steps, 5);
  EXPECT_DOUBLE_EQ(record.seconds.save, 1);
  EXPECT_DOUBLE_EQ(record.seconds.evaluation, 0.25);
  EXPECT_DOUBLE_EQ(record.seconds.data_wait, 0.5);
  EXPECT_TRUE(AttemptLog(folder_).notes().empty());  // closed once
}

TEST_F(AttemptsTest, DamagedLinesCostThemselvesOnly) {
  {
    AttemptLog log(folder_);
    log.start("a", {"node"}, 1, lens::MapEnvironment());
    log.end(base::ExitCode::kDone);
  }
  std::ofstream(folder_ / kAttemptsFile, std::ios::app)
      << "\x01\xff\n[1]\n{\"event\":\"end\",\"attempt\":9,\"time\":1}\n{\"event\":\"start\",\"attempt\":\"x\"}\n"
         "{\"event\":\"start\",\"attempt\":2,\"time\":1,\"run_id\":7,\"hosts\":[3],\"num_ranks\":\"x\"}\n{\"event\":"
         "\"sta";
  AttemptLog next(folder_);
  next.start("b", {"node"}, 1, lens::MapEnvironment());
  const AttemptHistory read = history();
  ASSERT_EQ(read.attempts.size(), 3u);
  EXPECT_EQ(read.num_damaged_lines, 5);
  EXPECT_EQ(read.attempts[2].run_id, "b");
}

TEST_F(AttemptsTest, AFileThatCannotBeWrittenEndsNothing) {
  std::filesystem::create_directory(folder_ / kAttemptsFile);
  testing::internal::CaptureStderr();
  AttemptLog log(folder_);
  log.start("a", {"node"}, 1, lens::MapEnvironment());
  log.begin_steps(0);
  log.end(base::ExitCode::kDone);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("Training goes on"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning"));
  ASSERT_EQ(log.notes().size(), 1u);
}

AttemptRecord attempt(std::int64_t number, double start, double end, std::int64_t first, std::int64_t last,
                      const std::string& cause, std::optional<std::int64_t> saved) {
  AttemptRecord record;
  record.number = number;
  record.start = start;
  record.begin = start + 1;
  record.end = end;
  record.first_step = first;
  record.last_step = last;
  record.last_saved_step = saved;
  record.cause = cause;
  record.seconds = {.start_up = 1, .steps = static_cast<double>(last - first), .evaluation = 2, .save = 3};
  return record;
}

double sum_of_kinds(const GoodputSeconds& seconds) {
  return seconds.useful_steps + seconds.lost_steps + seconds.start_up + seconds.evaluation + seconds.save +
         seconds.waiting + seconds.unaccounted;
}

TEST(Goodput, StepsThatWereDoneAgainAreLost) {
  // Attempt 1 ran to 12, the second began again at 10; both were resumed at 5, since their checkpoints were damaged.
  const GoodputReport report = compute_goodput(
      {.attempts = {attempt(1, 0, 30, 0, 12, "lost", 10), attempt(2, 40, 60, 10, 14, "training failure", 10),
                    attempt(3, 70, 100, 5, 20, "done", 20)}});
  EXPECT_EQ(report.attempts[0].useful_steps, 5);
  EXPECT_EQ(report.attempts[1].useful_steps, 0);
  EXPECT_EQ(report.attempts[2].useful_steps, 15);
  EXPECT_EQ(report.useful_steps, 20);  // each step of the run once
  EXPECT_EQ(report.steps, 31);
  EXPECT_DOUBLE_EQ(report.seconds.useful_steps, 20);
  EXPECT_DOUBLE_EQ(report.seconds.lost_steps, 11);
  EXPECT_DOUBLE_EQ(report.seconds.waiting, 20);
  EXPECT_DOUBLE_EQ(report.seconds.wall, 100);
  EXPECT_DOUBLE_EQ(sum_of_kinds(report.seconds), report.seconds.wall);
  EXPECT_DOUBLE_EQ(report.seconds.goodput(), 0.2);
  EXPECT_DOUBLE_EQ(report.seconds.goodput_while_running(), 0.25);
}

/// As many as a run that is restarted in a loop gets: looking at all later ones for each would take minutes.
TEST(Goodput, ManyAttempts) {
  constexpr std::int64_t kAttempts = 200'000;
  AttemptHistory history;
  for (std::int64_t i = 0; i < kAttempts; ++i)
    history.attempts.push_back(attempt(i + 1, 10.0 * i, 10.0 * i + 9, i, i + 2, "lost", i + 1));
  const GoodputReport report = compute_goodput(std::move(history));
  EXPECT_EQ(report.steps, 2 * kAttempts);
  EXPECT_EQ(report.useful_steps, kAttempts);
}

TEST_F(AttemptsTest, OpenAttemptsShareOneReadingOfTheMetrics) {
  std::string lines;
  for (const int first : {0, 4}) {
    const AttemptRecord record{.number = first + 1, .start = 10.0 + first, .begin = 11.0 + first, .first_step = first};
    lines += start_line(record).dump() + "\n" + begin_line(record).dump() + "\n";
  }
  write(kAttemptsFile, lines);
  write("metrics.jsonl",
        "{\"step\":4,\"time\":14,\"step_time_ms\":2000}\n{\"step\":4,\"checkpoint_bytes\":1,\"checkpoint_ms\":500}\n"
        "{\"step\":5,\"time\":20,\"step_time_ms\":1000}\n");
  const GoodputReport report = read_goodput(folder_);
  ASSERT_EQ(report.attempts.size(), 2u);
  EXPECT_DOUBLE_EQ(report.attempts[0].record.seconds.steps, 3);
  EXPECT_DOUBLE_EQ(report.attempts[0].record.seconds.save, 0.5);
  EXPECT_DOUBLE_EQ(report.attempts[1].record.seconds.steps, 1);
  EXPECT_DOUBLE_EQ(report.attempts[1].record.seconds.save, 0);
  EXPECT_EQ(report.attempts[1].record.last_saved_step, 4);
  EXPECT_EQ(report.attempts[1].record.end, 20);
}

TEST(Goodput, WhatNoCheckpointHoldsIsLost) {
  struct Case {
    const char* cause;
    std::optional<std::int64_t> saved;
    std::int64_t useful;
  };
  for (const Case& c : {Case{"done", std::nullopt, 9},
                        {"time limit", 9, 9},
                        {"lost", 6, 6},
                        {"user error", {}, 0},
                        {"", 6, 9}}) {  // no end is known: it may still save
    const GoodputReport report = compute_goodput({.attempts = {attempt(1, 0, 30, 0, 9, c.cause, c.saved)}});
    EXPECT_EQ(report.useful_steps, c.useful) << c.cause;
    EXPECT_DOUBLE_EQ(sum_of_kinds(report.seconds), 30) << c.cause;
  }
}

TEST(Goodput, ClocksThatAreBehindTakeNoTimeAndMakeNone) {
  struct Case {
    const char* what;
    double second_start, third_start;
    double waiting[3];
  };
  for (const Case& c : {Case{"right", 40, 70, {0, 10, 10}},
                        {"the second one's is an hour behind", 40 - 3600, 70, {0, 0, 20}},
                        {"from the second one on an hour behind", 40 - 3600, 70 - 3600, {0, 0, 10}}}) {
    const double start = c.second_start;
    AttemptRecord stepped = attempt(3, c.third_start, c.third_start - 50, 8, 20, "done", 20);  // back within itself
    const GoodputReport report =
        compute_goodput({.attempts = {attempt(1, 0, 30, 0, 4, "exit interval", 4),
                                      attempt(2, start, start + 20, 4, 8, "exit interval", 8), std::move(stepped)}});
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_DOUBLE_EQ(report.attempts[i].seconds.waiting, c.waiting[i]) << c.what << i;
      EXPECT_GE(report.attempts[i].seconds.unaccounted, 0) << c.what << i;
    }
    EXPECT_DOUBLE_EQ(report.seconds.useful_steps, 20) << c.what;
    EXPECT_DOUBLE_EQ(report.seconds.wall, 30 + 20 + 18 + c.waiting[1] + c.waiting[2]) << c.what;
    EXPECT_NEAR(sum_of_kinds(report.seconds), report.seconds.wall, 1e-9) << c.what;
  }
}

TEST(Goodput, AttemptsWithoutStepsTakeTime) {
  AttemptRecord refused;
  refused.number = 1;
  refused.end = 4;
  refused.cause = "user error";
  const GoodputReport report = compute_goodput({.attempts = {refused, attempt(2, 10, 30, 0, 9, "done", 9)}});
  EXPECT_EQ(report.useful_steps, 9);
  EXPECT_DOUBLE_EQ(report.attempts[0].seconds.unaccounted, 4);
  EXPECT_DOUBLE_EQ(sum_of_kinds(report.seconds), 30);
}

TEST_F(AttemptsTest, GoodputSaysWhatIsMissing) {
  for (const auto& [content, part] : {std::pair{"", "empty or damaged"}, {"nonsense\n{}\n", "empty or damaged"}}) {
    write(kAttemptsFile, content);
    try {
      read_goodput(folder_);
      ADD_FAILURE() << content;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  EXPECT_THROW(read_goodput(folder_ / "nowhere"), base::UserError);
  EXPECT_THROW(read_goodput(folder_ / std::string(300, 'x')), base::UserError);
}

TEST_F(AttemptsTest, AbsurdNumbersAreDamage) {
  for (const char* number : {"9223372036854775807", "18446744073709551615", "-9223372036854775808", "1000000000000000",
                             "1000001", "0", "1e3", "-1"}) {
    const auto history = parse_attempts(std::string(R"({"event":"start","time":1,"attempt":)") + number + "}\n");
    EXPECT_EQ(history.num_damaged_lines, 1) << number;
    EXPECT_TRUE(history.attempts.empty()) << number;
  }
  const auto history = parse_attempts(
      R"({"event":"start","time":1,"attempt":1}
{"event":"begin","time":1e300,"attempt":1,"first_step":0}
{"event":"begin","time":2,"attempt":1,"first_step":-9223372036854775808}
{"event":"end","time":3,"attempt":1,"last_step":9223372036854775807}
)");
  EXPECT_EQ(history.num_damaged_lines, 1);
  ASSERT_EQ(history.attempts.size(), 1u);
  EXPECT_FALSE(history.attempts[0].first_step);
  EXPECT_FALSE(history.attempts[0].last_step);
}

TEST_F(AttemptsTest, ANumberThatIsReadHasOneAfterIt) {
  std::string lines;
  for (const char* number : {"1", "1000000000000000", "1000001", "2000001", "3000002"})
    lines += std::string(R"({"event":"start","time":1,"attempt":)") + number + "}\n";
  write(kAttemptsFile, lines);
  AttemptLog next(folder_);
  EXPECT_EQ(next.current().number, 2000002);
  next.start("a", {"node"}, 1, lens::MapEnvironment());
  EXPECT_EQ(history().num_damaged_lines, 2);
  EXPECT_EQ(history().attempts.back().number, 2000002);
}

TEST_F(AttemptsTest, AnExitCodeThatIsNoneIsLeftOut) {
  for (const auto& [text, code] : {std::pair<const char*, std::optional<int>>{"255", 255},
                                   {"256", std::nullopt},
                                   {"99999999999", std::nullopt},
                                   {"-1", std::nullopt}}) {
    const auto history = parse_attempts(R"({"event":"start","time":1,"attempt":1}
{"event":"end","time":3,"attempt":1,"exit_code":)" +
                                        std::string(text) + "}\n");
    EXPECT_EQ(history.attempts.at(0).exit_code, code) << text;
  }
}

TEST_F(AttemptsTest, APipeInPlaceOfAttemptsIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / kAttemptsFile).c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  AttemptLog log(folder_);
  log.start("a", {"node"}, 1, lens::MapEnvironment());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("is not a regular file"));
}

TEST_F(AttemptsTest, APipeInPlaceOfMetricsIsNotOpened) {
  ASSERT_EQ(::mkfifo((folder_ / "metrics.jsonl").c_str(), 0600), 0);
  AttemptRecord record = attempt(1, 5, 30, 0, 9, "", std::nullopt);
  record.end.reset();
  RunMetrics(folder_ / "metrics.jsonl").complete(record);
  EXPECT_EQ(record.last_step, 0);
  EXPECT_TRUE(record.end);
}

TEST_F(AttemptsTest, GoodputNamesTheNodesThatSlurmLost) {
  const auto attempt = [](int number, const char* job) {
    return start_line({.number = number, .start = 100.0 * number, .job_id = job}).dump() + "\n";
  };
  write(kAttemptsFile, attempt(1, "7") + attempt(2, "7") + attempt(3, "8") + attempt(4, "../other"));
  write("slurm-7.log",
        "a rank prints: Node failure on n9\nsrun: error: Node failure on n2\nsrun: error: Node failure on n2\n"
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO NODE FAILURE, SEE LOG ***\n");
  EXPECT_THAT(read_goodput(folder_).node_failures,
              testing::ElementsAre("slurm-7.log: srun: error: Node failure on n2",
                                   HasSubstr("STEP 7.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO NODE FAILURE")));
}

}  // namespace
}  // namespace pharos::train
