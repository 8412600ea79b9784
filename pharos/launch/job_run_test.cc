// What a job does while it runs: variables, output, the run folder, restarts.
#include <gmock/gmock.h>

#include <sstream>

#include "pharos/launch/test_support.h"

namespace pharos::launch {
namespace {

using testing::content;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::JobTest;
using testing::lines_of;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(JobTest, RanksKnowTheirPlace) {
  // More ranks than a small machine has cores.
  EXPECT_EQ(
      run(job_of(
          9,
          "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS > $F/r$RANK; "
          "echo $MASTER_PORT > $F/p$RANK; readlink /proc/$$/fd/${PHAROS_LISTEN_SOCKET:-none} > $F/s$RANK; exit 0")),
      0);
  for (int rank = 0; rank < 9; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_THAT(content(folder / ("r" + number)), StartsWith(number + " 9 " + number + " 9 127.0.0.1 "));
    EXPECT_GT(std::stoi(lines_of(folder / ("r" + number))[0].substr(18)), 0);
    EXPECT_EQ(content(folder / ("p" + number)), content(folder / "p0"));
    EXPECT_EQ(content(folder / ("s" + number)).starts_with("socket:"), rank == 0);
  }
  EXPECT_GT(std::stoi(content(folder / "p0")), 0);
}

TEST_F(JobTest, ArgumentsNameTheRunFolder) {
  EXPECT_EQ(run(job_of(1, "echo \"$@\" > $F/arguments")), 0);
  EXPECT_EQ(content(folder / "arguments"), "--run-dir " + run_folder.string() + " recipe a=b\n");
}

TEST_F(JobTest, EveryLineArrives) {
  EXPECT_EQ(run(job_of(2, "seq 100000; echo last >&2; exit 0")), 0);
  std::vector<std::string> expected;
  for (int i = 1; i <= 100000; ++i) expected.push_back(std::to_string(i));
  expected.emplace_back("last");
  EXPECT_TRUE(lines_of(folder / "console") == expected);
  std::vector<std::string> logged = lines_of(run_folder / "rank_1.log");
  EXPECT_THAT(logged.at(0), StartsWith("--- attempt 1, rank 1 of 2, "));
  logged.erase(logged.begin());
  EXPECT_TRUE(logged == expected);
}

TEST_F(JobTest, PortInUse) {
  const ListenSocket taken(0);
  JobOptions options = job_of(2, "echo 1 > $F/started");
  options.port = taken.port();
  EXPECT_EQ(run(options), 2);
  EXPECT_THAT(report(), HasSubstr("Port " + std::to_string(taken.port()) + " of 127.0.0.1 cannot be used"));
  EXPECT_THAT(report(), HasSubstr("MASTER_PORT"));
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs")) << "something was left behind";
}

TEST_F(JobTest, GivenPortIsUsed) {
  JobOptions options = job_of(2, "echo $MASTER_PORT > $F/port.$RANK");
  options.port = ListenSocket(0).port();
  EXPECT_EQ(run(options), 0);
  EXPECT_EQ(content(folder / "port.1"), std::to_string(options.port) + "\n");
}

TEST_F(JobTest, RefusedRunLeavesNoTrace) {
  std::filesystem::create_directories(run_folder);
  base::write_file_atomically(run_folder / "run.yaml", "of another run");
  base::write_file_atomically(run_folder / "rank_1.log", "of another run\n");
  EXPECT_EQ(run(job_of(3, "[ $RANK = 0 ] && exit 2; echo noise; sleep 100")), 2);
  EXPECT_EQ(content(run_folder / "rank_1.log"), "of another run\n");
  EXPECT_FALSE(std::filesystem::exists(run_folder / "rank_2.log"));
  std::filesystem::remove_all(folder / "runs");
  EXPECT_EQ(run(job_of(3, "[ $RANK = 0 ] && exit 2; sleep 100")), 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
}

TEST_F(JobTest, UserErrorWithinARunKeepsTheLogs) {
  EXPECT_EQ(run(job_of(2, "[ $RANK = 0 ] && echo 1 > $2/run.yaml && exit 2; echo kept; sleep 100")), 2);
  EXPECT_TRUE(std::filesystem::exists(run_folder / "rank_1.log"));
}

TEST_F(JobTest, TwoJobsInOneFolder) {
  start(job_of(2, "echo 1 > $F/ready.$RANK; until [ -e $F/stop ]; do sleep 0.01; done; exit 0"));
  wait_for_files({"ready.0", "ready.1"});
  std::ostringstream second;
  try {
    run_local_job(job_of(3, "exit 0"), second);
    ADD_FAILURE() << "the second job ran";
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Another job is running in '" + run_folder.string() + "'"));
  }
  base::write_file_atomically(folder / "stop", "1");
  EXPECT_EQ(wait(), 0);
  EXPECT_EQ(lines_of(run_folder / "rank_1.log").size(), 1U);
  EXPECT_FALSE(std::filesystem::exists(run_folder / "rank_2.log"));
}

TEST_F(JobTest, FolderThatCannotBeMade) {
  base::write_file_atomically(folder / "runs", "a file");
  EXPECT_EQ(run(job_of(2, "exit 0")), 2);
  EXPECT_THAT(report(), HasSubstr((folder / "runs").string()));
}

/// Rank 0 counts the attempts in $F/attempts, writes step $STEP, and `last` of them ends well.
std::string restart_script(const std::string& step, int last, const std::string& end) {
  return R"(
if [ $RANK != 0 ]; then echo line of rank $RANK; exec sleep 100; fi
echo "$*" >> $F/attempts
n=$(wc -l < $F/attempts)
echo yaml > $2/run.yaml
echo "{\"step\": )" +
         step + R"(}" >> $2/metrics.jsonl
[ $n -ge )" +
         std::to_string(last) + R"( ] && exit 2
)" + end;
}

TEST_F(JobTest, RestartsUntilItEnds) {
  JobOptions options = job_of(2, R"(
[ $RANK = 0 ] && echo "$*" >> $F/attempts
[ "$3" = --resume ] && exit 0
if [ $RANK = 1 ]; then until [ -s $2/metrics.jsonl ]; do sleep 0.01; done; kill -9 $$; fi
echo yaml > $2/run.yaml
echo "{\"step\": 3}" > $2/metrics.jsonl
sleep 100)");
  options.max_restarts = 5;
  EXPECT_EQ(run(options), 0) << report();
  const std::string folder_words = "--run-dir " + run_folder.string();
  EXPECT_THAT(lines_of(folder / "attempts"),
              ElementsAre(folder_words + " recipe a=b", folder_words + " --resume recipe a=b"));
  EXPECT_THAT(report(),
              HasSubstr("launcher: attempt 1 ended at step 3 because rank 1 was killed by SIGKILL; attempt 2 of at "
                        "most 6 continues from the last checkpoint.\n"));
  EXPECT_THAT(content(run_folder / "rank_1.log"), HasSubstr("--- attempt 2, rank 1 of 2"));
}

struct RestartCase {
  const char* name;
  std::string step;  ///< of attempt $n
  std::string end;
  std::int64_t max_restarts;
  std::size_t num_attempts;
  int code;
  std::string reported;
};

class Restart : public JobTest, public ::testing::WithParamInterface<RestartCase> {};

TEST_P(Restart, EndsWhereItShould) {
  JobOptions options = job_of(2, restart_script(GetParam().step, 5, GetParam().end));
  options.max_restarts = GetParam().max_restarts;
  EXPECT_EQ(run(options), GetParam().code) << report();
  EXPECT_EQ(lines_of(folder / "attempts").size(), GetParam().num_attempts);
  EXPECT_THAT(report(), HasSubstr(GetParam().reported));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Restart,
    ::testing::Values(
        RestartCase{"none_asked_for", "$n", "kill -9 $$", 0, 1, 3, "rank 0 was killed by SIGKILL"},
        RestartCase{"used_up", "$n", "kill -9 $$", 2, 3, 3, "no further attempt: --max-restarts 2 is used up."},
        RestartCase{"until_user_error", "$n", "exit 3", 9, 5, 2, "rank 0 left with code 2"},
        RestartCase{"no_progress", "7", "exit 3", 9, 2, 3, "no further attempt: two in a row ended at step 7."},
        RestartCase{"progress_then_none", "$((n < 3 ? n : 3))", "exit 3", 9, 4, 3, "two in a row ended at step 3."},
        RestartCase{"user_error", "$n", "exit 2", 9, 1, 2, "rank 0 left with code 2"},
        RestartCase{"rerun_failed", "$n", "exit 17", 9, 1, 17, "rank 0 left with code 17"},
        RestartCase{"rerun_restart", "$n", "exit 16", 1, 2, 16, "attempt 2 of at most 2 continues"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(JobTest, SignalBetweenAttemptsEndsTheJob) {
  JobOptions options = job_of(1, "echo 1 >> $F/attempts; exit 3");
  options.max_restarts = 3;
  options.restart_delay = std::chrono::hours(1);
  start(options);
  wait_until([&] { return report().find("attempt 2 of at most 4 starts from the beginning") != std::string::npos; });
  kill(launcher(), SIGTERM);
  EXPECT_EQ(wait(), 3);
  EXPECT_EQ(lines_of(folder / "attempts").size(), 1U);
}

TEST_F(JobTest, InterruptedJobIsNotRestarted) {
  JobOptions options = job_of(2, "echo 1 >> $F/attempts.$RANK; exit 4");
  options.max_restarts = 3;
  EXPECT_EQ(run(options), 4);
  EXPECT_EQ(lines_of(folder / "attempts.0").size(), 1U);
}

}  // namespace
}  // namespace pharos::launch
