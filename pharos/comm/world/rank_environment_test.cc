#include "pharos/comm/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::comm {
namespace {

using Variables = std::map<std::string, std::string>;

struct Case {
  const char* name;
  Variables variables;
  std::int64_t rank, world_size, local_rank, local_world_size;
  const char* address;
  int port;
};

Variables slurm(Variables more) {
  Variables variables{{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}, {"SLURM_PROCID", "5"},
                      {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", "n[1-2]"}};
  for (auto& [key, value] : more) variables[key] = value;
  return variables;
}

Variables torchrun(Variables more) {
  Variables variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  for (auto& [key, value] : more) variables[key] = value;
  return variables;
}

TEST(RankEnvironment, Read) {
  const int port = 15000 + 7 * 31 + 2;
  const Case kCases[] = {
      {"nothing", {}, 0, 1, 0, 1, "127.0.0.1", 0},
      {"blank", {{"RANK", " "}, {"WORLD_SIZE", ""}}, 0, 1, 0, 1, "127.0.0.1", 0},
      {"alone", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, 0, 1, 0, 1, "127.0.0.1", 0},
      {"one node", torchrun({}), 3, 4, 3, 4, "10.0.0.1", 29500},
      {"two nodes", torchrun({{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}), 3, 4, 1, 2, "10.0.0.1", 29500},
      {"torchrun within SLURM", torchrun(slurm({})), 3, 4, 3, 4, "10.0.0.1", 29500},
      {"srun", slurm({}), 5, 8, 1, 8, "n1", port},
      {"srun with tasks per node", slurm({{"SLURM_NTASKS_PER_NODE", "4"}}), 5, 8, 1, 4, "n1", port},
      {"srun with a list of tasks", slurm({{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}}), 5, 8, 1, 4, "n1", port},
      {"srun, address given", slurm({{"MASTER_ADDR", "m"}, {"MASTER_PORT", "77"}}), 5, 8, 1, 8, "m", 77},
      {"list of two brackets", slurm({{"SLURM_STEP_NODELIST", "r[03-4,9]n[01-08],x"}}), 5, 8, 1, 8, "r03n01", port},
      {"plain list", slurm({{"SLURM_STEP_NODELIST", "alpha,beta"}}), 5, 8, 1, 8, "alpha", port},
      {"one task", slurm({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}), 0, 1, 0, 1, "127.0.0.1", 0},
      {"batch script", slurm({{"SLURM_STEP_ID", ""}, {"SLURM_PROCID", "0"}}), 0, 1, 0, 1, "127.0.0.1", 0},
      {"shell of salloc", slurm({{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}}), 0, 1, 0, 1, "127.0.0.1", 0},
  };
  for (const auto& example : kCases) {
    SCOPED_TRACE(example.name);
    const auto read = read_rank_environment(lens::MapEnvironment(example.variables));
    EXPECT_EQ(read.rank, example.rank);
    EXPECT_EQ(read.world_size, example.world_size);
    EXPECT_EQ(read.local_rank, example.local_rank);
    EXPECT_EQ(read.local_world_size, example.local_world_size);
    EXPECT_EQ(read.master_address, example.address);
    EXPECT_EQ(read.master_port, example.port);
    EXPECT_FALSE(read.listen_socket);
  }
}

TEST(RankEnvironment, ListenSocketIsForRankZero) {
  const auto read = [](Variables variables) {
    return read_rank_environment(lens::MapEnvironment(std::move(variables)));
  };
  EXPECT_FALSE(read(torchrun({{"PHAROS_LISTEN_SOCKET", "9"}})).listen_socket);
  EXPECT_EQ(read(torchrun({{"RANK", "0"}, {"PHAROS_LISTEN_SOCKET", "9"}})).listen_socket, 9);
}

TEST(RankEnvironment, Mistakes) {
  const struct {
    Variables variables;
    const char* said;
  } kCases[] = {
      {{{"RANK", "0"}}, "RANK is set, but WORLD_SIZE is not"},
      {{{"WORLD_SIZE", "2"}}, "WORLD_SIZE is set, but RANK is not"},
      {torchrun({{"RANK", "x"}}), "RANK = \"x\" is not a whole number"},
      {torchrun({{"RANK", "-1"}}), "RANK = \"-1\" is not a whole number from 0"},
      {torchrun({{"WORLD_SIZE", "0"}}), "WORLD_SIZE = \"0\""},
      {torchrun({{"RANK", "4"}}), "RANK = 4 is not below WORLD_SIZE = 4"},
      {torchrun({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_RANK = 2 is not below LOCAL_WORLD_SIZE = 2"},
      {torchrun({{"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_RANK is not"},
      {torchrun({{"MASTER_ADDR", ""}}), "MASTER_ADDR is not set"},
      {torchrun({{"MASTER_PORT", ""}}), "MASTER_PORT is not set"},
      {torchrun({{"MASTER_PORT", "70000"}}), "MASTER_PORT = \"70000\" is not a whole number from 1 to 65535"},
      {slurm({{"SLURM_PROCID", "8"}}), "SLURM_PROCID = 8 is not below SLURM_NTASKS = 8"},
      {slurm({{"SLURM_NTASKS", "many"}}), "SLURM_NTASKS = \"many\""},
      {slurm({{"SLURM_STEP_NODELIST", ""}}), "neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST"},
  };
  for (const auto& [variables, said] : kCases) {
    try {
      read_rank_environment(lens::MapEnvironment(variables));
      ADD_FAILURE() << "no error: " << said;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(said));
    }
  }
}

}  // namespace
}  // namespace pharos::comm
