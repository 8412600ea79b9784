#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/comm/flight.h"

namespace pharos::comm {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1000 * kSecond;

enum State { kFinished, kWaiting, kUnderWay };

Flight collective(const char* group, std::vector<std::int64_t> ranks, std::uint64_t number, State state,
                  std::int64_t arrival_s = 900) {
  Flight flight;
  flight.group = group;
  flight.ranks = std::move(ranks);
  flight.number = number;
  flight.operation = Operation::kAllReduce;
  flight.purpose = "gradient bucket 2";
  flight.bytes = 4 << 20;
  flight.arrival_ns = arrival_s * kSecond;
  if (state != kUnderWay) flight.wait_ns = flight.arrival_ns + 1;
  if (state == kFinished) flight.end_ns = flight.arrival_ns + 2;
  return flight;
}

Flight transfer(Operation operation, std::int64_t peer, std::uint64_t number, State state) {
  auto flight = collective("pp", {0, 1, 2, 3}, number, state);
  flight.operation = operation;
  flight.peer = peer;
  return flight;
}

RankState rank_state(std::int64_t rank, std::vector<Flight> flights) {
  RankState state;
  state.rank = rank;
  state.host = "n1";
  state.phase = "step";
  state.step = 41;
  state.progress_ns = kNow - 33 * kSecond;
  state.alive_ns = kNow;
  state.flights = std::move(flights);
  return state;
}

const std::vector<std::int64_t> kAll{0, 1, 2, 3};
const std::vector<std::int64_t> kPair{0, 1};

struct Case {
  const char* name;
  std::vector<RankState> ranks;
  std::vector<std::int64_t> culprits;
  std::vector<const char*> said;
};

std::vector<Case> cases() {
  auto stopped = rank_state(1, {collective("dp", kPair, 5, kWaiting)});
  stopped.alive_ns = kNow - 20 * kSecond;
  auto gather = collective("dp", kPair, 5, kWaiting);
  gather.operation = Operation::kAllGather;
  auto smaller = collective("dp", kPair, 5, kWaiting);
  smaller.bytes = 1024;
  auto tokens = collective("ep", kPair, 5, kWaiting), other_tokens = tokens;
  tokens.operation = other_tokens.operation = Operation::kAllToAll;
  other_tokens.bytes = 1024;
  return {
      {"nobody waits", {rank_state(0, {collective("dp", kPair, 4, kFinished)}), rank_state(1, {})}, {}, {}},
      {"nobody waits for a call under way",
       {rank_state(0, {collective("dp", kPair, 5, kUnderWay)}), rank_state(1, {collective("dp", kPair, 4, kFinished)})},
       {},
       {}},
      {"one did not come",
       {rank_state(0, {collective("dp", kAll, 117, kWaiting, 967)}),
        rank_state(1, {collective("dp", kAll, 117, kWaiting, 969)}),
        rank_state(2, {collective("dp", kAll, 116, kFinished, 950), collective("tp", {2, 3}, 88, kFinished, 960)}),
        rank_state(3, {collective("dp", kAll, 117, kWaiting, 968)})},
       {2},
       {"dp call 117 (all_reduce \"gradient bucket 2\", 4.00 MiB): ranks 0, 1, 3 came 31.0 s ago; rank 2 did not, it "
        "was "
        "last in tp call 88, finished, phase step 41, no progress for 33.0 s"}},
      {"one left no record",
       {rank_state(0, {collective("dp", kPair, 1, kWaiting)})},
       {1},
       {"rank 1 did not, it left no record"}},
      {"one made no call",
       {rank_state(0, {collective("dp", kPair, 1, kWaiting)}), rank_state(1, {})},
       {1},
       {"has made no call yet"}},
      {"a chain over two groups",
       {rank_state(0, {collective("dp", {0, 2}, 9, kWaiting)}),
        rank_state(1, {collective("tp", {0, 1}, 3, kFinished), collective("dp", {1, 3}, 9, kFinished)}),
        rank_state(2, {collective("dp", {0, 2}, 8, kFinished), collective("tp", {2, 3}, 5, kWaiting)}),
        rank_state(3, {collective("tp", {2, 3}, 4, kFinished)})},
       {3},
       {"rank 2 did not, it waits in tp call 5", "rank 3 did not, it was last in tp call 4, finished"}},
      {"one that waits for nothing itself is to blame although its own calls are under way",
       {rank_state(0, {collective("dp", kPair, 7, kUnderWay), collective("tp", {0, 1}, 2, kFinished)}),
        rank_state(1, {collective("dp", kPair, 6, kFinished), collective("tp", {0, 1}, 3, kWaiting)})},
       {0},
       {"tp call 3", "rank 0 did not"}},
      {"a circle",
       {rank_state(0, {collective("tp", kPair, 5, kWaiting)}), rank_state(1, {collective("dp", kPair, 3, kWaiting)})},
       {0, 1},
       {"ranks 0, 1 wait for each other: rank 0 for rank 1 in tp call 5", "rank 1 for rank 0 in dp call 3",
        "different orders"}},
      {"a circle behind a chain",
       {rank_state(0, {collective("pp", {0, 1}, 1, kWaiting)}), rank_state(1, {collective("tp", {1, 2}, 5, kWaiting)}),
        rank_state(2, {collective("dp", {1, 2}, 3, kWaiting)})},
       {1, 2},
       {"ranks 1, 2 wait for each other"}},
      {"a receive without its send",
       {rank_state(0, {transfer(Operation::kSend, 1, 6, kFinished)}),
        rank_state(1, {transfer(Operation::kReceive, 0, 7, kWaiting)})},
       {0},
       {"pp call 7 (receive \"gradient bucket 2\", 4.00 MiB, from rank 0): rank 1 came", "rank 0 did not"}},
      {"transfers are matched by their direction",
       {rank_state(0, {transfer(Operation::kReceive, 1, 7, kFinished), transfer(Operation::kSend, 2, 7, kFinished)}),
        rank_state(1, {transfer(Operation::kReceive, 0, 7, kWaiting)})},
       {0},
       {"rank 0 did not"}},
      {"a sender who did not look at the end yet does not wait",
       {rank_state(0, {transfer(Operation::kSend, 1, 7, kUnderWay)}),
        rank_state(1, {transfer(Operation::kReceive, 0, 7, kFinished)})},
       {},
       {}},
      {"groups of one name with other ranks have nothing to do with each other",
       {rank_state(0, {collective("dp", {0, 2}, 5, kWaiting)}), rank_state(2, {collective("dp", {0, 2}, 4, kFinished)}),
        rank_state(1, {collective("dp", {1, 3}, 9, kFinished)})},
       {2},
       {"rank 0 came"}},
      {"different operations",
       {rank_state(0, {collective("dp", kPair, 5, kWaiting)}), rank_state(1, {gather})},
       {0, 1},
       {"the ranks called different things", "rank 0: all_reduce of 4.00 MiB", "rank 1: all_gather of 4.00 MiB"}},
      {"different sizes",
       {rank_state(0, {collective("dp", kPair, 5, kWaiting)}), rank_state(1, {smaller})},
       {0, 1},
       {"(4194304 bytes)", "(1024 bytes)"}},
      {"an all-to-all has a size for each rank",
       {rank_state(0, {tokens}), rank_state(1, {other_tokens})},
       {},
       {"look at the network"}},
      {"all came, one is stopped",
       {rank_state(0, {collective("dp", kPair, 5, kWaiting)}), stopped},
       {1},
       {"all came, the last 1 min 40 s ago, but rank 1 shows no life since 20.0 s"}},
      {"all came, nobody is to blame",
       {rank_state(0, {collective("dp", kPair, 5, kWaiting)}), rank_state(1, {collective("dp", kPair, 5, kWaiting)})},
       {},
       {"look at the network"}},
  };
}

TEST(Judge, Verdicts) {
  for (const auto& example : cases()) {
    SCOPED_TRACE(example.name);
    const auto verdict = judge(example.ranks);
    EXPECT_EQ(verdict.culprits, example.culprits);
    std::string all;
    for (const auto& line : verdict.lines) all += line + "\n";
    for (const auto* said : example.said) EXPECT_THAT(all, ::testing::HasSubstr(said));
    EXPECT_EQ(verdict.lines.empty(), example.said.empty()) << all;
  }
}

}  // namespace
}  // namespace pharos::comm
