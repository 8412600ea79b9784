// How jobs end: exit codes, signals, ranks that do not want to.
#include <gmock/gmock.h>

#include "pharos/launch/test_support.h"

namespace pharos::launch {
namespace {

using testing::content;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::JobTest;
using testing::lines_of;
using ::testing::Not;

constexpr const char* kWait = "while :; do sleep 0.01; done";

struct EndCase {
  const char* name;
  std::vector<std::string> ranks;  ///< what each does
  int code;
  std::vector<std::string> reported;  ///< none: the report is empty
};

/// $F/ready.RANK says that a rank is where it should be before rank 0 acts.
std::vector<EndCase> end_cases() {
  const std::string after_1 = "until [ -s $F/ready.1 ]; do sleep 0.01; done; ";
  const std::string say_ready = "echo 1 > $F/ready.1; ";
  return {
      {"all_done", {"exit 0", "exit 0", "exit 0"}, 0, {}},
      {"one_rank", {"exit 0"}, 0, {}},
      {"all_interrupted", {"exit 4", "exit 4"}, 4, {}},
      {"user_error",
       {"exit 2", kWait},
       2,
       {"launcher: rank 0 left with code 2 (user error", "rank 1 did not end by itself and was killed by SIGTERM"}},
      {"training_failure", {kWait, "exit 3", kWait}, 3, {"launcher: rank 1 left with code 3 (training failure)."}},
      {"rerun_restart", {kWait, "exit 16"}, 16, {"rank 1 left with code 16"}},
      {"rerun_failed", {kWait, "exit 17"}, 17, {"rank 1 left with code 17"}},
      {"unknown_code", {kWait, "exit 1"}, 3, {"rank 1 left with code 1 (not a code of pharos)"}},
      {"killed", {kWait, "kill -9 $$", kWait}, 3, {"launcher: rank 1 was killed by SIGKILL.", "dmesg"}},
      {"only_rank_killed", {"kill -9 $$"}, 3, {"launcher: rank 0 was killed by SIGKILL."}},
      {"crashed", {kWait, "kill -SEGV $$"}, 3, {"launcher: rank 1 was killed by SIGSEGV."}},
      {"different_ends",
       {after_1 + "exit 0", say_ready + "exit 4"},
       4,
       {"did not agree how to end: rank 0 left with code 0 (done), rank 1 left with code 4"}},
      {"others_follow",
       {after_1 + "exit 3", "trap 'exit 3' TERM; " + say_ready + kWait},
       3,
       {"launcher: rank 0 left with code 3", "rank 1 did not end by itself and left with code 3"}},
      {"ignores_sigterm",
       {after_1 + "exit 3", "trap '' TERM; " + say_ready + kWait},
       3,
       {"launcher: rank 0 left with code 3", "rank 1 did not end by itself and was killed by SIGKILL"}},
      {"stopped",
       {"until grep -qs '^State:.T' /proc/$(cat $F/ready.1)/status; do sleep 0.01; done; exit 3",
        "echo $$ > $F/ready.1; kill -STOP $$"},
       3,
       {"launcher: the job hung: rank 1 held up the others by standing still",
        "rank 0 gave up first and left with code 3"}},
  };
}

class JobEnd : public JobTest, public ::testing::WithParamInterface<EndCase> {};

TEST_P(JobEnd, GivesCodeAndReport) {
  std::string script = "case $RANK in\n";
  for (std::size_t rank = 0; rank < GetParam().ranks.size(); ++rank) {
    script += std::to_string(rank) + ") " + GetParam().ranks[rank] + ";;\n";
  }
  EXPECT_EQ(run(job_of(static_cast<std::int64_t>(GetParam().ranks.size()), script + "esac")), GetParam().code);
  EXPECT_EQ(report().empty(), GetParam().reported.empty()) << report();
  for (const std::string& text : GetParam().reported) EXPECT_THAT(report(), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(Cases, JobEnd, ::testing::ValuesIn(end_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(JobTest, ReportShowsTheLastLinesOfTheRankThatDied) {
  EXPECT_EQ(run(job_of(2, std::string("[ $RANK = 0 ] && ") + kWait + "\nseq 100; echo oh dear >&2; exit 3")), 3);
  EXPECT_THAT(report(), HasSubstr("last lines of " + (run_folder / "rank_1.log").string() + ":\n    92\n    93\n"));
  EXPECT_THAT(report(), HasSubstr("    100\n    oh dear\n"));
  EXPECT_THAT(report(), Not(HasSubstr("    91\n")));
}

TEST_F(JobTest, ReportOfRankZeroShowsLogTxt) {
  std::filesystem::create_directories(run_folder);
  base::write_file_atomically(run_folder / "log.txt", "of a run before\n");
  EXPECT_EQ(run(job_of(1, "echo step 5 of this run >> $2/log.txt; exit 3")), 3);
  EXPECT_THAT(report(), HasSubstr("log.txt:\n    step 5 of this run\n"));
}

TEST_F(JobTest, ProgramThatIsNotThere) {
  JobOptions options = job_of(2, "");
  options.program = folder / "nothing";
  options.max_restarts = 5;
  EXPECT_EQ(run(options), 3);
  EXPECT_THAT(report(), HasSubstr("left with code 127 (the program could not be started)"));
  EXPECT_THAT(content(folder / "console"), HasSubstr("cannot execute " + options.program.string()));
  EXPECT_THAT(report(), Not(HasSubstr("attempt")));
}

/// Writes a line for each signal it gets, until $F/stop is there, then leaves with 4.
constexpr const char* kSignalScript = R"(
for signal in INT TERM HUP USR1 USR2; do trap "echo $signal >> $F/signals.$RANK" $signal; done
echo 1 > $F/ready.$RANK
until [ -e $F/stop ]; do sleep 0.01; done
exit 4)";

TEST_F(JobTest, SignalsArePassedOnExactlyOnce) {
  start(job_of(2, kSignalScript));
  wait_for_files({"ready.0", "ready.1"});
  const std::vector<std::string> names = {"HUP", "USR1", "USR2", "TERM"};
  std::size_t num_sent = 0;
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2, SIGTERM}) {
    kill(-launcher(), signal);  // as a terminal does: to the whole group
    ++num_sent;
    wait_until([&] {
      return lines_of(folder / "signals.0").size() >= num_sent && lines_of(folder / "signals.1").size() >= num_sent;
    });
  }
  base::write_file_atomically(folder / "stop", "1");
  EXPECT_EQ(wait(), 4);
  EXPECT_EQ(lines_of(folder / "signals.0"), names);
  EXPECT_EQ(lines_of(folder / "signals.1"), names);
  EXPECT_THAT(report(), IsEmpty());
}

TEST_F(JobTest, SecondInterruptEndsRanksThatStay) {
  JobOptions options = job_of(2, std::string("trap 'echo 1 >> $F/seen.$RANK' INT; echo 1 > $F/ready.$RANK; ") + kWait);
  options.patience.after_two_interrupts = std::chrono::milliseconds(50);
  options.max_restarts = 3;
  start(options);
  wait_for_files({"ready.0", "ready.1"});
  kill(launcher(), SIGINT);
  wait_for_files({"seen.0", "seen.1"});  // and nothing more happens
  kill(launcher(), SIGINT);
  EXPECT_EQ(wait(), 3);
  EXPECT_THAT(report(), HasSubstr("rank 0 did not end by itself and was killed by SIGKILL"));
  EXPECT_THAT(report(), Not(HasSubstr("attempt")));
}

TEST_F(JobTest, SignalThatKillsTheRanksIsNamed) {
  JobOptions options = job_of(2, std::string("echo 1 > $F/ready.$RANK; ") + kWait);
  options.max_restarts = 3;
  start(options);
  wait_for_files({"ready.0", "ready.1"});
  kill(launcher(), SIGTERM);
  EXPECT_EQ(wait(), 3);
  EXPECT_THAT(report(), HasSubstr("was killed by SIGTERM, which the launcher had got and passed on"));
  EXPECT_THAT(report(), Not(HasSubstr("attempt")));
}

/// The state letter of a process; 0 when there is none.
char state_of(const std::string& pid) {
  const std::string line = content("/proc/" + pid + "/stat");
  const std::size_t at = line.rfind(") ");
  return at == std::string::npos ? '\0' : line[at + 2];
}

TEST_F(JobTest, StopsAndContinuesWithTheLauncher) {
  start(job_of(2, std::string("echo $$ > $F/pid.$RANK; trap 'exit 4' TERM; ") + kWait));
  wait_for_files({"pid.0", "pid.1"});
  const std::vector<std::string> pids = {lines_of(folder / "pid.0")[0], lines_of(folder / "pid.1")[0],
                                         std::to_string(launcher())};
  kill(launcher(), SIGTSTP);
  for (const std::string& pid : pids) wait_until([&] { return state_of(pid) == 'T'; });
  kill(launcher(), SIGCONT);
  for (const std::string& pid : pids) wait_until([&] { return state_of(pid) != 'T'; });
  kill(launcher(), SIGTERM);
  EXPECT_EQ(wait(), 4);
}

TEST_F(JobTest, KilledLauncherTakesItsRanksAlong) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  start(job_of(3, std::string("trap '' TERM HUP; echo $$ > $F/pid.$RANK; ") + kWait));
  wait_for_files({"pid.0", "pid.1", "pid.2"});
  std::vector<pid_t> ranks;
  for (const char* name : {"pid.0", "pid.1", "pid.2"}) ranks.push_back(std::stoi(content(folder / name)));
  kill(launcher(), SIGKILL);
  EXPECT_EQ(wait(), -SIGKILL);
  for (const pid_t rank : ranks) {
    int status = 0;
    EXPECT_EQ(waitpid(rank, &status, 0), rank);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(JobTest, WhatARankStartedEndsWithIt) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  EXPECT_EQ(run(job_of(2, std::string("sleep 1000 & echo $! > $F/pid.$RANK\n[ $RANK = 1 ] && kill -9 $$\n") + kWait)),
            3);
  for (const char* name : {"pid.0", "pid.1"}) {
    if (content(folder / name).empty()) continue;  // rank 0 may have been ended before
    const pid_t pid = std::stoi(content(folder / name));
    int status = 0;
    const pid_t reaped = waitpid(pid, &status, 0);  // by the launcher, or it comes to us
    EXPECT_TRUE(reaped == -1 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace pharos::launch
