#include "pharos/comm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/comm/test_process.h"
#include "pharos/comm/testing.h"
#include "pharos/comm/world/sockets.h"

namespace pharos::comm {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using testing::Process;

TEST(World, ExchangeAndAnnounce) {
  testing::run_ranks(3, [](World& world) {
    const auto own = "text of " + std::to_string(world.rank());
    EXPECT_EQ(world.exchange("a", own), (std::vector<std::string>{"text of 0", "text of 1", "text of 2"}));
    EXPECT_EQ(world.announce("a", own), "text of 0");
    EXPECT_EQ(world.exchange("empty", ""), (std::vector<std::string>{"", "", ""}));
    EXPECT_EQ(world.announce("empty", ""), "");
  });
}

TEST(World, AloneThereIsNoStore) {
  World world(RankEnvironment{}, {});
  EXPECT_EQ(world.exchange("a", "b"), (std::vector<std::string>{"b"}));
  EXPECT_EQ(world.announce("a", "b"), "b");
  EXPECT_EQ(world.all().size(), 1);
  EXPECT_TRUE(world.device().is_cpu());
  world.leave();
}

TEST(World, FailureOfOneRankReachesThoseThatWaitElsewhere) {
  for (const bool is_user_error : {true, false}) {
    std::mutex mutex;
    std::map<std::int64_t, std::string> said;
    testing::run_ranks(3, [&](World& world) {
      std::string text;
      try {
        if (world.rank() == 1) world.exchange("model", "broken", Failure{is_user_error, "no memory"});
        if (world.rank() == 0) world.exchange("data", "fine");
        if (world.rank() == 2) world.announce("files", "");
      } catch (const base::UserError& error) {
        text = std::string("user: ") + error.what();
      } catch (const std::exception& error) {
        text = error.what();
      }
      const std::lock_guard lock(mutex);
      said[world.rank()] = text;
    });
    EXPECT_THAT(said[0], HasSubstr("Rank 1 failed: no memory"));
    EXPECT_EQ(said[0], said[2]);
    EXPECT_EQ(said[0].starts_with("user: "), is_user_error);
    EXPECT_THAT(said[1], HasSubstr("exchange of \"model\""));
  }
}

TEST(World, NameOfAGroupStandsForOneSet) {
  testing::run_ranks(2, [](World& world) {
    auto& group = world.group("dp", {0, 1});
    EXPECT_EQ(&group, &world.group("dp", {0, 1}));
    EXPECT_THROW(world.group("dp", {world.rank()}), base::InternalError);
    EXPECT_THROW(world.group("tp", {1 - world.rank()}), base::InternalError);
    EXPECT_EQ(world.groups(), (std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"dp", {0, 1}}}));
  });
}

/// A port nobody listens on; the socket that finds it is closed.
int free_port() {
  const int socket = open_listen_socket(0, true);
  const auto port = port_of(socket);
  ::close(socket);
  return port;
}

std::vector<std::string> variables(int rank, int world_size, int port, const std::string& address = "127.0.0.1") {
  return {"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(world_size), "MASTER_ADDR=" + address,
          "MASTER_PORT=" + std::to_string(port)};
}

struct Start {
  int rank, world_size;
};

/// comm_probe's ends, of ranks that are started at once.
std::vector<Ended> meet(const std::vector<Start>& starts, int timeout_ms, int dying_rank = -1) {
  const int port = free_port();
  std::vector<Process> processes;
  for (const auto& [rank, world_size] : starts) {
    processes.emplace_back(std::vector<std::string>{"meet", std::to_string(timeout_ms), std::to_string(dying_rank)},
                           variables(rank, world_size, port));
  }
  std::vector<Ended> ends;
  for (auto& process : processes) ends.push_back(process.wait());
  return ends;
}

TEST(WorldProcesses, Meet) {
  for (const auto& end : meet({{2, 3}, {1, 3}, {0, 3}}, 60000)) {
    EXPECT_EQ(end.status, 0);
    EXPECT_THAT(end.errors, HasSubstr("sum 6"));
  }
}

TEST(WorldProcesses, Mistakes) {
  const struct {
    const char* name;
    std::vector<Start> starts;
    int timeout_ms;
    const char* said;
  } kCases[] = {
      {"a rank does not come", {{0, 4}, {2, 4}}, 1500, "2 of 4 ranks have not come: 1, 3."},
      {"a rank comes twice", {{0, 3}, {1, 3}, {1, 3}}, 60000, "Rank 1 came twice: process "},
      {"world sizes differ", {{0, 2}, {1, 3}}, 60000, "was told of 2 ranks, rank 1 (process "},
  };
  for (const auto& [name, starts, timeout_ms, said] : kCases) {
    SCOPED_TRACE(name);
    for (const auto& end : meet(starts, timeout_ms)) {
      EXPECT_EQ(WEXITSTATUS(end.status), 2);
      EXPECT_THAT(end.errors, HasSubstr(said));
    }
  }
}

TEST(WorldProcesses, MasterIsNotThere) {
  const auto end = Process({"meet", "300"}, variables(1, 2, free_port())).wait();
  EXPECT_EQ(WEXITSTATUS(end.status), 2);
  EXPECT_THAT(end.errors, AllOf(HasSubstr("was not reached within 300 ms"), HasSubstr("Connection refused")));
}

TEST(WorldProcesses, NameOfMasterIsWrong) {
  const auto end = Process({"meet", "300"}, variables(1, 2, 29500, "no-such-host.invalid")).wait();
  EXPECT_EQ(WEXITSTATUS(end.status), 2);
  EXPECT_THAT(end.errors, HasSubstr("its name cannot be resolved"));
}

TEST(WorldProcesses, PortIsTaken) {
  const int socket = open_listen_socket(0, true);
  const auto end = Process({"meet", "60000"}, variables(0, 2, port_of(socket))).wait();
  ::close(socket);
  EXPECT_EQ(WEXITSTATUS(end.status), 2);
  EXPECT_THAT(end.errors, HasSubstr("is taken by another program"));
}

TEST(WorldProcesses, AnotherProgramListensAtTheMastersPort) {
  const int socket = open_listen_socket(0, true);  // takes connections and never answers
  const auto end = Process({"meet", "500"}, variables(1, 2, port_of(socket))).wait();
  ::close(socket);
  EXPECT_EQ(WEXITSTATUS(end.status), 2);
  EXPECT_THAT(end.errors, HasSubstr("another program listens there"));
}

TEST(WorldProcesses, KilledPeerIsNamedByItsGroup) {
  for (const int dying : {0, 1, 2}) {
    const auto ends = meet({{0, 3}, {1, 3}, {2, 3}}, 60000, dying);
    for (int rank = 0; rank < 3; ++rank) {
      const auto& end = ends[static_cast<std::size_t>(rank)];
      if (rank == dying) {
        EXPECT_TRUE(WIFSIGNALED(end.status));
      } else {
        EXPECT_EQ(WEXITSTATUS(end.status), 3) << end.errors;
        EXPECT_THAT(end.errors, AnyOf(HasSubstr("all_reduce \"ranks\", call 1 in group world (ranks 0, 1, 2)"),
                                      HasSubstr("exchange of \"group is made\"")));
      }
    }
  }
}

}  // namespace
}  // namespace pharos::comm
