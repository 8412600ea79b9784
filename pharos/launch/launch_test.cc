// The parts of the launcher that need no process: blame, command lines, environments, ends of files.
#include <gmock/gmock.h>

#include "pharos/base/error.h"
#include "pharos/launch/job.h"
#include "pharos/launch/rank_end.h"
#include "pharos/launch/rank_logs.h"
#include "pharos/launch/rank_process.h"
#include "pharos/launch/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RankEnd, BlameFollowsTimeThenCause) {
  const std::vector<RankEnd> ends = {
      {.rank = 0, .code = 3, .time_ns = 20},  // seen together with ranks 2 and 4
      {.rank = 1, .signal = SIGKILL, .time_ns = 10, .was_told_to = true},
      {.rank = 2, .signal = SIGSEGV, .time_ns = 20},
      {.rank = 3, .code = 4, .time_ns = 5},
      {.rank = 4, .code = 2, .time_ns = 20},
      {.rank = 5, .code = 3, .time_ns = 30},
      {.rank = 6, .code = 0, .time_ns = 1},
  };
  EXPECT_THAT(failures_in_order(ends), ElementsAre(2, 4, 0, 5, 1));
  EXPECT_EQ(exit_code_of(ends), 3);
}

TEST(RankEnd, CodeOfTheJob) {
  const auto job = [](std::vector<int> codes) {
    std::vector<RankEnd> ends;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      ends.push_back({.rank = static_cast<std::int64_t>(i), .code = codes[i], .time_ns = static_cast<std::int64_t>(i)});
    }
    return exit_code_of(ends);
  };
  EXPECT_EQ(job({0, 0}), 0);
  EXPECT_EQ(job({4, 4}), 4);
  EXPECT_EQ(job({0, 4}), 4);
  EXPECT_EQ(job({4, 3, 2}), 3);
  EXPECT_EQ(job({0, 17, 3}), 17);
  EXPECT_EQ(job({0, 139}), 3);
}

TEST(CommandLine, LauncherOptionsAreTakenOut) {
  const std::vector<std::string> names = {"--nproc", "--max-restarts", "--run-dir"};
  EXPECT_THAT(without_options({"train", "--nproc", "2", "tiny", "a.b=--nproc", "--run-dir=x", "--resume"}, names),
              ElementsAre("train", "tiny", "a.b=--nproc", "--resume"));
  EXPECT_THAT(without_options({"train", "--nproc=2", "--nprocs", "--max-restarts", "3", "--", "--run-dir", "x"}, names),
              ElementsAre("train", "--nprocs", "--", "--run-dir", "x"));
  EXPECT_THAT(without_options({"train", "--nproc"}, names), ElementsAre("train"));
}

TEST(RankVariables, ReplaceAndAdd) {
  const RankPlace place = {.rank = 1, .num_ranks = 3, .port = 1234, .listen_descriptor = 7};
  const auto variables = rank_variables({"A=b", "RANK=9", "PHAROS_LISTEN_SOCKET=4", "OMP_NUM_THREADS=5"}, place);
  EXPECT_THAT(variables, ElementsAre("A=b", "OMP_NUM_THREADS=5", "RANK=1", "WORLD_SIZE=3", "LOCAL_RANK=1",
                                     "LOCAL_WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1234"));
  EXPECT_THAT(rank_variables({}, {.rank = 0, .num_ranks = 100000, .port = 1, .listen_descriptor = 7}),
              ::testing::AllOf(Contains("PHAROS_LISTEN_SOCKET=7"), Contains("OMP_NUM_THREADS=1")));
}

TEST(JobPort, ComesFromTheEnvironment) {
  const auto port = [](std::map<std::string, std::string> variables) {
    return find_job_port(lens::MapEnvironment(std::move(variables)));
  };
  EXPECT_EQ(port({}), 0);
  EXPECT_EQ(port({{"MASTER_PORT", "29500"}}), 29500);
  EXPECT_THROW(port({{"MASTER_PORT", "65536"}}), base::UserError);
  EXPECT_THROW(port({{"MASTER_PORT", "12x"}}), base::UserError);
  EXPECT_THROW(port({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), base::UserError);
  EXPECT_THROW(port({{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "2"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_JOB_ID", "7"},
                     {"SLURM_STEP_NODELIST", "node1"}}),
               base::UserError);
}

TEST(OwnProgram, IsThisProgram) { EXPECT_TRUE(std::filesystem::equivalent(own_program(), "/proc/self/exe")); }

class LogTail : public testing::JobTest {};

TEST_F(LogTail, ShowsWhatCameAfterTheBeginning) {
  const std::filesystem::path path = folder / "log";
  base::write_file_atomically(path, "old\n\none\r\ntwo\nthree");
  EXPECT_THAT(last_lines({.path = path, .begin_bytes = 4}, 10), ElementsAre("one", "two", "three"));
  EXPECT_THAT(last_lines({.path = path, .begin_bytes = 4}, 2), ElementsAre("two", "three"));
  EXPECT_THAT(last_lines({.path = path, .begin_bytes = 1000}, 1), ElementsAre("three"));  // written anew, shorter
  EXPECT_TRUE(last_lines({.path = folder / "nothing"}, 2).empty());
  base::write_file_atomically(path, std::string(1 << 20, 'x') + "\nlast\n");
  EXPECT_THAT(last_lines({.path = path}, 5), ElementsAre("last"));
}

TEST_F(LogTail, CannotSteerTheTerminal) {
  EXPECT_EQ(printable("a\x1b[2Jb\tc"), "a\\x1b[2Jb\\tc");
  EXPECT_EQ(printable(std::string(1000, 'x')).size(), 400 + std::string("…").size());
}

TEST_F(LogTail, APipeInPlaceOfALogIsNotWaitedFor) {
  for (const char* name : {"log.txt", "rank_1.log"}) ASSERT_EQ(mkfifo((folder / name).c_str(), 0600), 0);
  EXPECT_THROW(RankLogs(folder, 2), base::UserError);
  EXPECT_TRUE(last_lines({.path = folder / "log.txt"}, 2).empty());
}

}  // namespace
}  // namespace pharos::launch
