#include "pharos/lens/setup/run_id.h"

#include <gtest/gtest.h>

#include <regex>

namespace pharos::lens {
namespace {

TEST(RunId, IsTheFirstThatIsKnown) {
  struct Case {
    std::string configured;
    std::map<std::string, std::string> variables;
    std::string shared;
    std::string expected;
  };
  const Case kCases[] = {
      {"mine", {{"SLURM_JOB_ID", "4242"}}, "shared", "mine"},
      {"", {{"SLURM_JOB_ID", "4242"}, {"TORCHELASTIC_RUN_ID", "elastic"}}, "shared", "4242"},
      {"", {{"SLURM_JOB_ID", ""}, {"TORCHELASTIC_RUN_ID", "elastic"}}, "shared", "elastic"},
      {"", {{"TORCHELASTIC_RUN_ID", "none"}, {"PMIX_NAMESPACE", "prterun-1"}}, "", "prterun-1"},
      {"", {{"PBS_JOBID", "77.server"}}, "", "77.server"},
      {"", {{"LSB_JOBID", "9"}}, "", "9"},
      {"", {{"TORCHELASTIC_RUN_ID", "none"}}, "shared", "shared"},
      {"", {}, "shared", "shared"},
  };
  for (const Case& c : kCases) {
    EXPECT_EQ(choose_run_id({.run_id = c.configured}, MapEnvironment(c.variables), c.shared), c.expected);
  }
}

TEST(RunId, ElseTwelveRandomHexadecimalDigits) {
  const MapEnvironment empty;
  const std::string first = choose_run_id({}, empty);
  EXPECT_TRUE(std::regex_match(first, std::regex("[0-9a-f]{12}"))) << first;
  EXPECT_NE(first, choose_run_id({}, empty));
}

// Expected values: Python's uuid.uuid5(uuid.NAMESPACE_URL, name).
TEST(RunId, Uuid5) {
  const std::pair<const char*, const char*> kVectors[] = {
      {"http://python.org/", "4c565f0d-3f5a-5890-b41b-20cf47701c5e"},
      {"nemo.lens.job/alpha/4242", "bee6888e-4792-563f-952f-5f148c3dde29"},
      {"nemo.lens.run/alpha/4242", "3c0c9972-fd15-54b7-a332-44d1e6358e2b"},
  };
  for (const auto& [name, uuid] : kVectors) EXPECT_EQ(uuid5_of_url(name), uuid) << name;
}

TEST(RunId, JobAndRunUuids) {
  struct Case {
    std::map<std::string, std::string> variables;
    const char* job;
    const char* run;
  };
  const Case kCases[] = {
      // …/nocluster/nojob, …/nocluster/nojob/sr0
      {{}, "d2badfc7-0e4c-537b-b4ea-8785f79f8679", "b19cd435-659e-5816-b7eb-724bc636e47b"},
      // …/alpha/4242, …/alpha/4242/sr0
      {{{"SLURM_CLUSTER_NAME", "alpha"}, {"SLURM_JOB_ID", "4242"}, {"SLURM_RESTART_COUNT", ""}},
       "bee6888e-4792-563f-952f-5f148c3dde29",
       "61345d74-166d-54e4-8f9c-a7fee6f8e6f2"},
      // …/alpha/4242, …/alpha/4242/sr2/te3
      {{{"SLURM_CLUSTER_NAME", "alpha"},
        {"SLURM_JOB_ID", "4242"},
        {"SLURM_RESTART_COUNT", "2"},
        {"TORCHELASTIC_RESTART_COUNT", "3"}},
       "bee6888e-4792-563f-952f-5f148c3dde29",
       "30ec5e11-fc17-53a7-a1f6-8aa70a812afe"},
      // an array job: …/alpha/77, …/alpha/77
      {{{"SLURM_CLUSTER_NAME", "alpha"},
        {"SLURM_JOB_ID", "78"},
        {"SLURM_ARRAY_JOB_ID", "77"},
        {"SLURM_ARRAY_TASK_ID", "1"},
        {"SLURM_RESTART_COUNT", "2"}},
       "79278e58-35e9-5f85-8c96-0dc0af8988b3",
       "86314714-85bd-5546-8914-31385e4f35e3"},
      // …/alpha/77, …/alpha/77/te0
      {{{"SLURM_CLUSTER_NAME", "alpha"},
        {"SLURM_ARRAY_JOB_ID", "77"},
        {"SLURM_ARRAY_TASK_ID", "1"},
        {"TORCHELASTIC_RESTART_COUNT", "0"}},
       "79278e58-35e9-5f85-8c96-0dc0af8988b3",
       "b3c04b80-5f55-56fc-8d44-ef97dccc89fa"},
  };
  for (const Case& c : kCases) {
    const MapEnvironment environment(c.variables);
    EXPECT_EQ(job_uuid(environment), c.job) << testing::PrintToString(c.variables);
    EXPECT_EQ(run_uuid(environment), c.run) << testing::PrintToString(c.variables);
  }
}

}  // namespace
}  // namespace pharos::lens
