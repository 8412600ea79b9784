// The scripts are run by a real bash; srun, squeue, scontrol and scancel are stand-ins that write down what they got.
#include "pharos/launch/slurm/job_script.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>

#include <fstream>
#include <iterator>

#include "pharos/base/subprocess.h"
#include "pharos/launch/slurm/test_support.h"

namespace pharos::launch::slurm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class JobScript : public testing::FakeSlurmTest {
 protected:
  JobScript() {
    fake("squeue", R"sh(case "$*" in *%T*) cat "$F/state" ;; *) echo "1:00:00 2030-01-01T00:00:00" ;; esac)sh");
    fake("scontrol", R"sh(
case $1 in
  show) [ "$2" = hostnames ] && printf 'localhost\nother\n' ;;
  *) echo "$*" >>"$F/scontrol" ;;
esac)sh");
    // Each task in turn, as SLURM would number it.
    fake("srun", R"sh(
words=("$@")
for i in "${!words[@]}"; do case ${words[i]} in --*) printf '%s\n' "${words[i]}" >>"$F/srun" ;; *) break ;; esac; done
for rank in 0 1; do
  (unset F words; SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2 "${@:i+1}") || code=$?
done
[ ! -e "$F/says" ] || cat "$F/says" >&2
exit "${code:-0}")sh");
    fake("pharos", R"sh(
{ printf '<%s>' "$@"; echo; } >>"$F/train"
echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT ${NOTE:-} $PHAROS_TIME_LIMIT_END" >>"$F/env"
exit "$(cat "$F/code" 2>/dev/null || echo 0)")sh");
    fake("nsys", R"sh({ printf '%s ' "$@"; echo; } >>"$F/nsys")sh");
    base::write_file_atomically(folder / "state", "RUNNING\n");
    request.job.name = "a job";
    request.job.recipe = "tiny";
    request.job.num_nodes = 1;
    request.job.gpus_per_node = 2;
    request.job.master_port = free_port();
    request.job.run_folder = request.task_run_folder = folder / "run folder";
    request.host_program = folder / "bin/pharos";
    request.mpi = "none";
  }

  static std::uint16_t free_port() {
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&address), size), 0);
    getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size);
    close(probe);
    return ntohs(address.sin_port);
  }

  base::CommandResult run(const std::string& script, const std::vector<std::string>& variables = {},
                          const std::string& arguments = "") const {
    base::write_file_atomically(folder / "script", script);
    std::vector<std::string> words = {
        "env", "-u", "MASTER_PORT", "TZ=UTC", "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2]"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), {"bash", "-c", "bash \"$0\" $1 >>\"$2\" 2>&1; c=$?; cat \"$2\"; exit $c",
                               (folder / "script").string(), arguments, (folder / "run folder/slurm-7.log").string()});
    std::filesystem::create_directories(folder / "run folder");
    return base::run_command({.words = words});
  }

  SlurmRequest request;
};

TEST_F(JobScript, EveryTaskBecomesATrainerWithItsNumbers) {
  request.job.overrides = {"a=b c", "q='\"$HOME`id`", "line=1\n2", "e=", "s=\\x"};
  request.job.environment.variables = {{.name = "NOTE", .value = "rank-$SLURM_PROCID", .reason = ""}};
  for (const bool is_batch : {true, false}) {
    const base::CommandResult result = run(is_batch ? batch_script(request) : allocation_script(request));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    const std::string words = "<train><tiny><a=b c><q='\"$HOME`id`><line=1\n2><e=><s=\\x><--run-dir><" +
                              (folder / "run folder").string() + ">\n";
    EXPECT_EQ(content(folder / "train"), words + words);
    const std::string meeting = ":" + std::to_string(request.job.master_port) + " ";
    const std::string all = content(folder / "env");
    EXPECT_THAT(all, HasSubstr("0 0 2 2 "));
    EXPECT_THAT(all, HasSubstr(meeting + "rank-0 1893456000\n1 1 2 2 "));
    EXPECT_THAT(all, HasSubstr(meeting + "rank-1 1893456000\n"));
    EXPECT_THAT(content(folder / "srun"), HasSubstr("--nodes=1\n--ntasks=2\n--ntasks-per-node=2\n--mpi=none\n"
                                                    "--kill-on-bad-exit=1\n--cpu-bind=none\n--distribution=block\n"));
    for (const char* name : {"train", "env", "srun"}) std::filesystem::remove(folder / name);
  }
}

TEST_F(JobScript, ARunThatIsThereIsContinuedByAllRanks) {
  std::filesystem::create_directories(request.job.run_folder);
  base::write_file_atomically(request.job.run_folder / "run.yaml", "model: {}\n");
  EXPECT_EQ(run(batch_script(request)).exit_code, 0);
  const std::string words = content(folder / "train");
  EXPECT_EQ(words.find("<--resume>\n"), words.find('\n') - 10);
  EXPECT_EQ(words.rfind("<--resume>\n"), words.size() - 11);
}

TEST_F(JobScript, ARunYamlOfNoBytesIsARunToo) {
  std::filesystem::create_directories(request.job.run_folder);
  base::write_file_atomically(request.job.run_folder / "run.yaml", "");
  EXPECT_EQ(run(batch_script(request)).exit_code, 0);
  EXPECT_THAT(content(folder / "train"), HasSubstr("<--resume>\n"));
}

TEST_F(JobScript, ARecipeIsNoOptionOfTheProgram) {
  request.job.recipe = "-x.yaml";
  EXPECT_EQ(run(batch_script(request)).exit_code, 0);
  EXPECT_THAT(content(folder / "train"), HasSubstr("<train><./-x.yaml><--run-dir>"));
}

TEST_F(JobScript, APortThatIsNoneIsSaid) {
  for (const char* port : {"029500", "x", "1 + 1", "a[$(touch $F/evaluated)]", "123456"}) {
    for (const char* array : {"", "1-2"}) {
      request.array = array;
      const base::CommandResult result = run(
          batch_script(request), {std::string("MASTER_PORT=") + port, "SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=1"});
      EXPECT_EQ(result.exit_code, 2) << port;
      EXPECT_THAT(result.output, HasSubstr("MASTER_PORT = '" + std::string(port) + "' is no port")) << array;
    }
  }
}

TEST_F(JobScript, WordsOfADamagedEndAreNotEvaluated) {
  request.is_requeued = true;
  request.max_requeues = 0;
  base::write_file_atomically(folder / "code", "4");
  std::filesystem::create_directories(request.job.run_folder);
  base::write_file_atomically(request.job.run_folder / "attempts.jsonl", "{\"useful_steps\":2}\n");
  const struct {
    const char* before;
    bool is_progress;  // one useful attempt is more than the file says
  } kCases[] = {
      {"4 7 0 1\n", false},
      {"4 7 0 01\n", false},
      {"4 7 0 0\n", true},
      {"4 7 0 x[$(touch ../evaluated)]\n", true},
      {"4 7 x[$(touch ../evaluated)] 1\n", true},
      {"4 7 nothing nothing\n", true},
      {"4 7 0 -1\n", true},
      {"4 7 0 99999999999999999999\n", true},
      {"4 7 0 1 1\n", true},
      {"4 7 0\n", true},
      {"4 8 0 1\n", true},
      {"4\n", true},
      {"\n", true},
      {"", true},
  };
  for (const auto& [before, is_progress] : kCases) {
    base::write_file_atomically(request.job.run_folder / "launch.end", before);
    std::filesystem::remove(folder / "scontrol");
    std::filesystem::current_path(request.job.run_folder);
    const base::CommandResult result = run(batch_script(request), {"SLURM_RESTART_COUNT=1"});
    std::filesystem::current_path("/");
    EXPECT_EQ(result.exit_code, 4) << result.output;
    EXPECT_EQ(content(folder / "scontrol"), is_progress ? "requeue 7\n" : "") << before << result.output;
    EXPECT_THAT(result.output, Not(HasSubstr("unbound"))) << before;
    EXPECT_FALSE(std::filesystem::exists(folder / "evaluated")) << before;
  }
}

TEST_F(JobScript, NsysStandsBeforeTheRanksThatProfile) {
  request.job.uses_nsys = true;
  request.job.nsys_ranks = {0};
  request.job.environment.profile = NetworkProfile::kEfa;
  request.task_run_folder = "/runs/a";
  const std::string script = batch_script(request);
  EXPECT_THAT(script, HasSubstr("nsys profile -t cuda,nvtx -s none --cpuctxsw=none --capture-range=cudaProfilerApi "
                                "--capture-range-end=stop --enable efa_metrics -o "
                                "/runs/a/nsys/profile-$(hostname)-rank$RANK.nsys-rep --force-overwrite=true"));
  EXPECT_EQ(run(script).exit_code, 0);
  EXPECT_THAT(content(folder / "nsys"), HasSubstr("-rank0.nsys-rep --force-overwrite=true pharos train tiny"));
  EXPECT_THAT(content(folder / "nsys"), Not(HasSubstr("rank1")));
  EXPECT_THAT(content(folder / "env"), ::testing::StartsWith("1 1 2 2"));  // the other one, without
  request.job.environment.profile = NetworkProfile::kIb;
  request.job.nsys_ranks = {};
  std::filesystem::remove(folder / "nsys");
  EXPECT_EQ(run(batch_script(request)).exit_code, 0);
  EXPECT_THAT(content(folder / "nsys"),
              ::testing::AllOf(HasSubstr("rank0"), HasSubstr("rank1"), Not(HasSubstr("efa"))));
}

TEST_F(JobScript, WithoutNsysTheTaskSaysSo) {
  request.job.uses_nsys = true;
  std::filesystem::remove(folder / "bin/nsys");
  std::filesystem::create_symlink("/bin/bash", folder / "bin/bash");
  // The task finds the stand-ins alone, whatever this machine has.
  fake("srun", R"sh(
while [ "${1#--}" != "$1" ]; do shift; done
export PATH="$F/bin" SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2
exec "$@")sh");
  const base::CommandResult result = run(batch_script(request));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("There is no nsys in PATH"));
  EXPECT_THAT(result.output, HasSubstr("fix: Install it where the tasks run"));
}

TEST_F(JobScript, JobsThatMayShareANodeMeetAtPortsOfTheirOwn) {
  request.job.master_port = 29500;
  request.has_port_of_job = true;
  fake("timeout", "exit 1");  // every port is free
  EXPECT_EQ(run(batch_script(request), {"SLURM_JOB_ID=12345"}).exit_code, 0);
  EXPECT_THAT(content(folder / "env"), HasSubstr(":29845 "));
  std::filesystem::remove(folder / "env");
  EXPECT_EQ(run(batch_script(request), {"SLURM_JOB_ID=12345", "MASTER_PORT=4000"}).exit_code, 0);
  EXPECT_THAT(content(folder / "env"), HasSubstr(":4000 "));
}

#define LOST_PEER "srun: error: n1: task 0: Exited with exit code 3\n"

TEST_F(JobScript, OnlyWhatAnotherTryCanHelpGoesBackIntoTheQueue) {
  const struct {
    int code;            // of the ranks
    const char* says;    // of srun
    const char* before;  // launch.end of the start before; empty: this is the first
    int useful;          // attempts that saved a further step
    const char* state;
    int expected;
    bool is_requeued;
  } kCases[] = {
      {0, "", "", 1, "RUNNING", 0, false},
      {2, "", "", 1, "RUNNING", 2, false},
      {3, "", "", 1, "RUNNING", 3, false},
      {17, "", "", 1, "RUNNING", 17, false},
      {126, "", "", 1, "RUNNING", 126, false},
      {127, "", "", 1, "RUNNING", 127, false},
      {4, "", "", 1, "RUNNING", 4, true},
      {4, "", "4 7 0 8\n", 9, "RUNNING", 4, true},
      {4, "", "4 7 2 9\n", 9, "RUNNING", 4, true},
      {4, "", "4 7 3 9\n", 9, "RUNNING", 4, false},  // no progress since
      {4, "", "", 1, "COMPLETING", 4, false},        // cancelled
      {16, "", "", 0, "RUNNING", 16, true},
      {137, "", "137 7 2 0\n", 0, "RUNNING", 137, true},
      {137, "", "137 7 3 0\n", 0, "RUNNING", 137, false},
      {137, "", "137 7 3 0\n", 1, "RUNNING", 137, true},
      {143, "srun: error: n2: task 1: Exited with exit code 2\nsrun: error: n1: task 0: Terminated\n", "", 0, "RUNNING",
       2, false},
      {143, "srun: error: n1: tasks 0-1: Exited with exit code 4\n", "", 0, "RUNNING", 4, true},
      // What srun says of a task that a signal has ended, or the kernel for want of memory.
      {3, "srun: error: n2: task 1: Floating point exception\n" LOST_PEER, "", 0, "RUNNING", 128, true},
      {3, "srun: error: n[1-2]: tasks 1,3: Illegal instruction (core dumped)\n" LOST_PEER, "", 0, "RUNNING", 128, true},
      {3, "srun: error: n2: task 1: Trace/breakpoint trap\n" LOST_PEER, "", 0, "RUNNING", 128, true},
      {3, "srun: error: n2: task 1: Out Of Memory\n" LOST_PEER, "", 0, "RUNNING", 128, true},
      {3, "srun: error: n2: task 1: Real-time signal 2\n" LOST_PEER, "", 0, "RUNNING", 128, true},
      {143, "srun: error: n1: task 0: Terminated\n", "", 0, "RUNNING", 143, true},
      // Ranks write to the same log: a line without an end, and bytes that are no text.
      {143, "half a linesrun: error: n2: task 1: Exited with exit code 2\n", "", 0, "RUNNING", 2, false},
      {143, "\377\376\nsrun: error: n2: task 1: Exited with exit code 2\n", "", 0, "RUNNING", 2, false},
      {143, "\377srun: error: n2: task 1: Exited with exit code 2\n", "", 0, "RUNNING", 2, false},
      // srun leaves with 0 when it has lost the ranks.
      {0, "srun: error: Node failure on n1\n", "", 0, "COMPLETING", 4, false},
      {0, "srun: error: Node failure on n1\n", "", 0, "RUNNING", 4, true},
      {3, LOST_PEER "srun: error: Node failure on n2\n", "", 0, "COMPLETING", 4, false},
      {0, "", "", 1, "COMPLETING", 4, false},
      {0, "", "", 1, "", 4, false},
      {0, "srun: error: spank: no matter\n", "", 1, "RUNNING", 0, false},
  };
  request.is_requeued = true;
  for (const auto& item : kCases) {
    base::write_file_atomically(folder / "code", std::to_string(item.code));
    base::write_file_atomically(folder / "says", item.says);
    base::write_file_atomically(folder / "state", std::string(item.state) + "\n");
    std::filesystem::remove(folder / "scontrol");
    std::filesystem::create_directories(request.job.run_folder);
    base::write_file_atomically(request.job.run_folder / "launch.end", item.before);
    std::string attempts;
    for (int i = 0; i < item.useful; ++i) attempts += "{\"event\":\"end\",\"useful_steps\":2}\n";
    base::write_file_atomically(request.job.run_folder / "attempts.jsonl", attempts + "{\"useful_steps\":0}\n");
    const base::CommandResult result =
        run(batch_script(request), {"SLURM_RESTART_COUNT=" + std::string(*item.before == 0 ? "" : "1")});
    const std::string what = std::to_string(item.code) + " " + item.before + " " + item.state + "\n" + result.output;
    EXPECT_EQ(result.exit_code, item.expected) << what;
    EXPECT_EQ(content(folder / "scontrol"), item.is_requeued ? "requeue 7\n" : "") << what;
    EXPECT_THAT(content(request.job.run_folder / "launch.end"),
                ::testing::StartsWith(std::to_string(item.expected) + " 7 "));
  }
  // Where the end cannot be noted the number of starts could not be counted.
  base::write_file_atomically(folder / "code", "4");
  std::filesystem::remove(folder / "scontrol");
  std::filesystem::create_directory(request.job.run_folder / "launch.end.new");
  EXPECT_EQ(run(batch_script(request)).exit_code, 4);
  EXPECT_FALSE(std::filesystem::exists(folder / "scontrol"));
  std::filesystem::remove(request.job.run_folder / "launch.end.new");
  request.is_requeued = false;
  base::write_file_atomically(folder / "state", "RUNNING\n");
  base::write_file_atomically(folder / "code", "4");
  std::filesystem::remove(folder / "scontrol");
  EXPECT_EQ(run(batch_script(request)).exit_code, 4);
  EXPECT_FALSE(std::filesystem::exists(folder / "scontrol"));
}

TEST_F(JobScript, ASignalToTheShellIsPassedOnOnceAndTheRanksAreWaitedFor) {
  // The stand-in signals the batch shell as SLURM does, once more when scancel has come by, and only then ends.
  fake("srun", R"sh(
batch=$(awk '/^PPid:/ { print $2 }' /proc/$PPID/status)
kill -TERM "$batch"
for i in $(seq 500); do [ ! -e "$F/scancel" ] || { kill -TERM "$batch"; break; }; sleep 0.01; done
exit 4)sh");
  fake("scancel", R"sh(echo "$*" >>"$F/scancel")sh");
  EXPECT_EQ(run(batch_script(request)).exit_code, 4);
  EXPECT_EQ(content(folder / "scancel"), "--signal=TERM 7\n");
}

TEST_F(JobScript, ALaterJobOfAChainLeavesWhenTheRunIsOver) {
  request.is_chained = true;
  const std::string script = batch_script(request);
  std::filesystem::create_directories(request.job.run_folder);
  for (const auto& [end, is_run] :
       {std::pair("0 6\n", false), {"2 6\n", false}, {"4 6 0 1\n", true}, {"137 6 1 0\n", true}}) {
    base::write_file_atomically(request.job.run_folder / "launch.end", end);
    std::filesystem::remove(folder / "train");
    EXPECT_EQ(run(script, {}, "5 6").exit_code, is_run ? 0 : std::stoi(end)) << end;
    EXPECT_EQ(std::filesystem::exists(folder / "train"), is_run) << end;
  }
}

TEST_F(JobScript, WhatOthersLeftInTheFolderDoesNotEndAChain) {
  request.is_chained = true;
  const std::string script = batch_script(request);
  std::filesystem::create_directories(request.job.run_folder);
  for (const auto& [end, jobs] : {std::pair("0 3\n", "5 6"), {"2 56 0 0\n", "5 6"}, {"0\n", ""}, {"0 6\n", ""}}) {
    base::write_file_atomically(request.job.run_folder / "launch.end", end);
    std::filesystem::remove(folder / "train");
    EXPECT_EQ(run(script, {}, jobs).exit_code, 0) << end;
    EXPECT_TRUE(std::filesystem::exists(folder / "train")) << end;
    EXPECT_EQ(content(request.job.run_folder / "launch.end"), "0 7 0 0\n");
  }
}

TEST_F(JobScript, WhoFindsTheFolderTakenDoesNotSayHowTheRunEnded) {
  std::filesystem::create_directories(request.job.run_folder);
  const std::filesystem::path end = request.job.run_folder / "launch.end";
  base::write_file_atomically(end, "4 6 0 1\n");
  base::write_file_atomically(folder / "code", "2");
  const int lock = open((request.job.run_folder / "lock").c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(run(batch_script(request)).exit_code, 2);
  EXPECT_EQ(content(end), "4 6 0 1\n");
  close(lock);
  EXPECT_EQ(run(batch_script(request)).exit_code, 2);
  EXPECT_EQ(content(end), "2 7 0 0\n");
}

TEST_F(JobScript, TheErrorsOfSrunAreFoundWhereverTheLogIs) {
  base::write_file_atomically(folder / "code", "143");
  base::write_file_atomically(folder / "says", "srun: error: n2: task 1: Exited with exit code 2\n");
  base::write_file_atomically(folder / "script", batch_script(request));
  const std::string command = "bash '" + (folder / "script").string() + "' >/dev/null 2>>'" + folder.string() + "/log'";
  const base::CommandResult result = base::run_command(
      {.words = {"env", "-u", "MASTER_PORT", "SLURM_JOB_ID=7", "SLURM_JOB_NODELIST=n[1-2]", "bash", "-c", command}});
  EXPECT_EQ(result.exit_code, 2) << content(folder / "log");
}

TEST_F(JobScript, HabitsOfTheUserDoNotReachTheCommandsOfSlurm) {
  fake("squeue", R"sh(
[ -z "${SLURM_TIME_FORMAT:-}${SQUEUE_STATES:-}" ] || exit 1
case "$*" in *%T*) echo RUNNING ;; *) echo "1:00:00 2030-01-01T00:00:00" ;; esac)sh");
  const std::vector<std::string> habits = {"SLURM_TIME_FORMAT=%H:%M", "SQUEUE_STATES=PENDING"};
  for (const auto& script : {batch_script(request), allocation_script(request)}) {
    std::filesystem::remove(folder / "env");
    EXPECT_EQ(run(script, habits).exit_code, 0);
    EXPECT_THAT(content(folder / "env"), HasSubstr(" 1893456000\n"));
  }
}

TEST_F(JobScript, ATaskOfAnArrayHasItsOwnFolderAndOverrides) {
  request.array = "3-5";
  request.job.overrides = {"rng.seed=%a"};
  const base::CommandResult result = run(batch_script(request), {"SLURM_ARRAY_JOB_ID=7", "SLURM_ARRAY_TASK_ID=4"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(content(folder / "train"), HasSubstr("<rng.seed=4><--run-dir><" + (folder / "run folder/4>").string()));
  EXPECT_EQ(content(folder / "run folder/4/launch.end"), "0 7_4 0 0\n");
}

TEST_F(JobScript, AMeetingPlaceThatCannotBeIsSaidBeforeTheTasksStart) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 8), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  fake("getent", "[ \"$2\" != localhost ] || echo 127.0.0.1 localhost");
  const std::string port = std::to_string(ntohs(address.sin_port));
  base::CommandResult result = run(batch_script(request), {"MASTER_PORT=" + port});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("Port " + port + " of 127.0.0.1 is taken"));
  close(taken);
  fake("scontrol", "[ \"$2\" != hostnames ] || echo nowhere");
  result = run(allocation_script(request));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("MASTER_ADDR: the name 'nowhere' of the first node has no address here"));
  EXPECT_FALSE(std::filesystem::exists(folder / "srun"));
}

TEST_F(JobScript, WithoutScontrolThisProgramReadsTheNodeList) {
  fake("scontrol", "exit 1");
  fake("pharos", R"sh(if [ "$1" = launch ]; then echo "$*" >>"$F/asked"; echo localhost; fi)sh");
  EXPECT_EQ(run(batch_script(request)).exit_code, 0);
  EXPECT_EQ(content(folder / "asked"), "launch --expand-nodes n[1-2]\n");
}

TEST_F(JobScript, HeaderAndContainerWords) {
  request.job.container =
      ContainerRequest{.image = "/i/a b.sqsh", .name = "n", .mounts = {"/a:/b", "/c:/d:ro"}, .work_folder = "/b"};
  request.job.run_folder = "/r/50%";
  request.asks_for_gpus = true;
  request.time = "1:00:00";
  request.array = "0-3%2";
  request.variables = {"TOKEN"};
  request.sbatch_arguments = {"--comment=say \"x\\y\""};
  request.srun_arguments = {"--label"};
  const std::string script = batch_script(request);
  EXPECT_THAT(script, ::testing::StartsWith("#!/bin/bash\n"
                                            "#SBATCH \"--job-name=a job\"\n"
                                            "#SBATCH --nodes=1\n"
                                            "#SBATCH --ntasks-per-node=2\n"
                                            "#SBATCH --gpus-per-node=2\n"
                                            "#SBATCH --exclusive\n"
                                            "#SBATCH --time=1:00:00\n"
                                            "#SBATCH --array=0-3%2\n"
                                            "#SBATCH --signal=TERM@120\n"
                                            "#SBATCH --output=/r/50%%/slurm-%A_%a.log\n"
                                            "#SBATCH --open-mode=append\n"
                                            "#SBATCH --no-requeue\n"
                                            "#SBATCH --export=ALL,TOKEN\n"
                                            "#SBATCH \"--comment=say \\\"x\\\\y\\\"\"\n"
                                            "set -u\n"));
  EXPECT_THAT(script, HasSubstr("  --gpus-per-node=2\n  '--container-image=/i/a b.sqsh'\n"
                                "  --container-mounts=/a:/b,/c:/d:ro\n  --container-name=n\n"
                                "  --container-workdir=/b\n  --container-env=TOKEN\n  --label\n)\n"));
  request.sbatch_arguments = {"a\nb"};
  EXPECT_THROW(batch_script(request), base::UserError);
}

}  // namespace
}  // namespace pharos::launch::slurm
