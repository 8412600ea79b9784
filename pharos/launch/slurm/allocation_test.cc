#include "pharos/launch/slurm/allocation.h"

#include <gmock/gmock.h>

namespace pharos::launch::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Allocation, IsReadFromWhatSlurmSays) {
  EXPECT_THAT(parse_cpus_per_node("16(x2),8"), ElementsAre(16, 16, 8));
  EXPECT_THAT(parse_cpus_per_node("1"), ElementsAre(1));
  for (const char* text : {"", "x", "4(x)", "4(y2)", "4,,"}) EXPECT_THAT(parse_cpus_per_node(text), IsEmpty()) << text;
  EXPECT_EQ(parse_job_gpus("   AllocTRES=cpu=2\n   JOB_GRES=gpu:h100:16\n     Nodes=n[1-2] GRES=gpu:8\n"), 16);
  EXPECT_EQ(parse_job_gpus("   JOB_GRES=(null)\n"), 0);
  EXPECT_EQ(parse_job_gpus("   JobId=7\n"), std::nullopt);
}

TEST(Allocation, IsComparedWithTheRanks) {
  const struct {
    std::int64_t nodes, ranks;
    bool asks_for_gpus;
    std::optional<std::int64_t> gpus;
    std::vector<std::string> srun;
    std::vector<std::string> problems;
  } kCases[] = {
      {2, 4, false, 0, {}, {}},
      {2, 4, true, 8, {}, {}},
      {2, 4, true, std::nullopt, {}, {}},
      {1, 4, true, 8, {}, {}},
      {2, 8, false, 0, {"--overcommit"}, {}},
      {2, 8, false, 0, {}, {"16 ranks on 2 nodes need 8 CPUs of each; this allocation has only 4 on one."}},
      {1, 4, true, 0, {}, {"4 ranks on 1 node need 4 GPUs of each; this allocation of 2 nodes has 0."}},
  };
  for (const auto& item : kCases) {
    SlurmRequest request{.job = {}, .task_run_folder = {}, .host_program = {}};
    request.job.num_nodes = item.nodes;
    request.job.gpus_per_node = item.ranks;
    request.asks_for_gpus = item.asks_for_gpus;
    request.srun_arguments = item.srun;
    Problems problems;
    check_allocation(request, {.num_nodes = 2, .cpus = {16, 4}, .gpus = item.gpus}, problems);
    std::vector<std::string> whats;
    for (const auto& problem : problems) {
      whats.push_back(problem.what);
      EXPECT_THAT(problem.fix, HasSubstr(item.asks_for_gpus ? "salloc --nodes=1 --exclusive --gpus-per-node=4"
                                                            : "salloc --nodes=2 --ntasks-per-node=8"));
    }
    EXPECT_EQ(whats, item.problems);
  }
}

}  // namespace
}  // namespace pharos::launch::slurm
