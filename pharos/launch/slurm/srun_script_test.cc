// srun.sh of the repository, run by a real bash with stand-ins for SLURM's commands.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "pharos/base/subprocess.h"
#include "pharos/launch/slurm/test_support.h"

namespace pharos::launch::slurm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SrunScript : public testing::FakeSlurmTest {
 protected:
  SrunScript() {
    fake("scontrol", "exit 1");
    fake("getent", "echo \"10.0.0.1 $2\"; echo \"$2\" >>\"$F/asked\"");
    fake("timeout", "exit 1");  // the port is free
    std::filesystem::create_directories(folder / "work" / "me" / "data");
    fake("srun", "printf '%s\\n' \"$@\" >\"$F/srun\"");
  }

  base::CommandResult run(std::vector<std::string> variables, std::vector<std::string> arguments = {"tiny"}) const {
    std::vector<std::string> words = {"env", "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "GPUS_PER_NODE=4"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), {"bash", std::filesystem::absolute(PHAROS_TEST_DATA "/../../srun.sh")});
    words.insert(words.end(), arguments.begin(), arguments.end());
    return base::run_command({.words = words, .folder = folder / "work"});
  }

  /// The word of srun that begins with `name`, without it; empty: there is none.
  std::string word_of_srun(const std::string& name) const {
    std::istringstream words(content("srun"));
    for (std::string word; std::getline(words, word);) {
      if (word.starts_with(name)) return word.substr(name.size());
    }
    return "";
  }

  std::string content(const char* name) const {
    std::ifstream file(folder / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(SrunScript, ReadsTheNodeListWithoutScontrol) {
  for (const auto& [list, first] : {std::pair("rack[3-4]n01,x", "rack3n01"),
                                    {"x7,rack-[09-10]", "x7"},
                                    {"n[01,05]", "n01"},
                                    {"a[1-2]b[3-4]", "a1b3"},
                                    {"host-1", "host-1"}}) {
    std::filesystem::remove(folder / "asked");
    const base::CommandResult result = run({std::string("SLURM_JOB_NODELIST=") + list});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(content("asked"), first + std::string("\n"));
  }
}

TEST_F(SrunScript, AsksForTheGpusOfTheAllocationAndNamesTheContainer) {
  base::write_file_atomically(folder / "my image.sqsh", "hsqs");
  const std::string image = "SQSH=" + (folder / "my image.sqsh").string();
  EXPECT_EQ(run({"SLURM_JOB_NODELIST=n1", image, "MOUNT=."}).exit_code, 0);
  EXPECT_THAT(content("srun"),
              ::testing::AllOf(Not(HasSubstr("--gpus-per-node=")), HasSubstr("--container-name=my_image-"),
                               HasSubstr("--distribution=block\n")));
  for (const char* variable : {"SLURM_GPUS_ON_NODE=8", "SLURM_JOB_GPUS=0,1", "SLURM_GPUS_PER_NODE=8"}) {
    EXPECT_EQ(run({"SLURM_JOB_NODELIST=n1", variable}).exit_code, 0);
    EXPECT_THAT(content("srun"), HasSubstr("--ntasks=8\n--ntasks-per-node=4\n")) << variable;
    EXPECT_THAT(content("srun"), HasSubstr("--gpus-per-node=4\n")) << variable;
  }
}

TEST_F(SrunScript, TasksWorkInThisFolderUnderItsNameInTheContainer) {
  base::write_file_atomically(folder / "image.sqsh", "hsqs");
  const std::string above = std::filesystem::canonical(folder), here = above + "/work";
  const struct {
    std::string mount, run, work_folder, task_run;  ///< no task_run: refused, with a word of work_folder
  } kCases[] = {
      {".:/w", "runs/a", "/w", "/w/runs/a"},
      {".:/w:ro+noexec," + above + ":/fsx", here + "/runs/a", "/w", "/w/runs/a"},
      {above + ":/fsx", "runs/a", "/fsx/work", "/fsx/work/runs/a"},  // a mount above this folder
      {"/:/host", "runs/a", "/host" + here, "/host" + here + "/runs/a"},
      {above + ":/fsx/,./me:/w", "me/runs", "/fsx/work", "/w/runs"},
      {",,.:/w,,", "runs/a", "/w", "/w/runs/a"},
      {above + ":/fsx,./me:/fsx/work", "me/runs", "", "/fsx/work/runs"},  // a mount that covers this folder
      {".:/w,me/data:/w/me", above + "/work/me/data/runs", "/w", "/w/me/runs"},
      {"./me:/w", "runs/a", "is not visible inside the container", ""},
      {".:/w", above + "/runs/a", "is not visible inside the container", ""},
      {".:/w,me/data:/w/runs", "runs/a", "is not visible inside the container", ""},
      {".:w", "runs/a", "is not an absolute path", ""},
  };
  for (const auto& test : kCases) {
    std::filesystem::remove(folder / "srun");
    const base::CommandResult result =
        run({"SLURM_JOB_NODELIST=n1", "SQSH=" + above + "/image.sqsh", "MOUNT=" + test.mount, "RUN_DIR=" + test.run});
    if (test.task_run.empty()) {
      EXPECT_EQ(result.exit_code, 2) << test.mount;
      EXPECT_THAT(result.error, HasSubstr(test.work_folder)) << test.mount;
      continue;
    }
    EXPECT_EQ(result.exit_code, 0) << test.mount << result.error;
    EXPECT_EQ(word_of_srun("--container-workdir="), test.work_folder) << test.mount;
    EXPECT_EQ(result.error.find("no mount shows this folder") != std::string::npos, test.work_folder.empty());
    EXPECT_THAT(content("srun"), HasSubstr("\n" + test.task_run + "\ntiny\n")) << test.mount;
  }
}

TEST_F(SrunScript, NsysRunsTheRanksThatTheProgramNames) {
  fake("srun", R"(while [[ $1 == -* ]]; do shift; done
for rank in 0 1 2 3; do SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=4 SLURM_NNODES=2 "$@" || exit; done)");
  fake("nsys", "echo \"$RANK\" >>\"$F/nsys\"");
  fake(
      "pharos",
      R"(case "$1 $2" in recipes*) printf '%s\n' "$*" >"$F/asked"; cat "$F/recipe" ;; train*) echo "$RANK" >>"$F/alone" ;; esac)");
  const struct {
    const char *uses_nsys, *ranks, *profiled, *alone;  ///< or what is wrong
  } kCases[] = {
      {"true", "[0]", "0\n", "1\n2\n3\n"},
      {"true", "[1, 3]", "1\n3\n", "0\n2\n"},
      {"true", "[-1, 2, 12]", "2\n", "0\n1\n3\n"},
      {"true", "[]", "0\n1\n2\n3\n", ""},
      {"true", "[10]", "names none of the 4 ranks: 10", nullptr},
      {"true", "[-1]", "names none of the 4 ranks: -1", nullptr},
      {"true", "{0: 1}", "could not be read", nullptr},
      {"false", "[0]", "use_nsys_profiler is false", nullptr},
  };
  for (const auto& test : kCases) {
    for (const char* name : {"nsys", "alone"}) std::filesystem::remove(folder / name);
    base::write_file_atomically(folder / "recipe",
                                std::string("config:\n  profiling:\n    use_nsys_profiler: ") + test.uses_nsys +
                                    "   # default\n    profile_ranks: " + test.ranks + "   # command line\n");
    const base::CommandResult result =
        run({"SLURM_JOB_NODELIST=n1"}, {"--nsys", "tiny", "--train-option", "value", "a.b=[1, 2]", "~c"});
    EXPECT_EQ(content("asked"),
              "recipes show tiny train.exit_signal_handler=true profiling.use_nsys_profiler=true "
              "a.b=[1, 2] ~c\n");
    EXPECT_EQ(result.exit_code, test.alone == nullptr ? 2 : 0) << test.ranks << result.error;
    if (test.alone == nullptr) {
      EXPECT_THAT(result.error, HasSubstr(test.profiled));
    } else {
      EXPECT_EQ(content("nsys"), test.profiled) << test.ranks;
      EXPECT_EQ(content("alone"), test.alone) << test.ranks;
    }
  }
}

}  // namespace
}  // namespace pharos::launch::slurm
