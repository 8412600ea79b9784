// srun.sh of the repository, run by a real bash with stand-ins for SLURM's commands.
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>

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
    fake("srun", "printf '%s\\n' \"$@\" >\"$F/srun\"");
  }

  base::CommandResult run(std::vector<std::string> variables) const {
    std::vector<std::string> words = {"env", "SLURM_JOB_ID=7", "SLURM_JOB_NUM_NODES=2", "GPUS_PER_NODE=4",
                                      "RUN_DIR=" + (folder / "run").string()};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(), {"bash", PHAROS_TEST_DATA "/../../srun.sh", "tiny"});
    return base::run_command({.words = words});
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
  EXPECT_EQ(run({"SLURM_JOB_NODELIST=n1", image, "MOUNT=/tmp"}).exit_code, 0);
  EXPECT_THAT(content("srun"),
              ::testing::AllOf(Not(HasSubstr("--gpus-per-node=")), HasSubstr("--container-name=my_image-")));
  for (const char* variable : {"SLURM_GPUS_ON_NODE=8", "SLURM_JOB_GPUS=0,1", "SLURM_GPUS_PER_NODE=8"}) {
    EXPECT_EQ(run({"SLURM_JOB_NODELIST=n1", variable}).exit_code, 0);
    EXPECT_THAT(content("srun"), HasSubstr("--ntasks=8\n--ntasks-per-node=4\n")) << variable;
    EXPECT_THAT(content("srun"), HasSubstr("--gpus-per-node=4\n")) << variable;
  }
}

}  // namespace
}  // namespace pharos::launch::slurm
