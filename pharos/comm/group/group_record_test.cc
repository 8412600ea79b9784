// What a call leaves behind: entries in the flight record and spans.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "pharos/comm/flight/writer.h"
#include "pharos/comm/testing.h"
#include "pharos/lens/test_support.h"

namespace pharos::comm {
namespace {

TEST(GroupRecord, CallsAreInTheFlightRecord) {
  start_flight_record(std::filesystem::path(::testing::TempDir()) / "group.flight", 0, 2);
  testing::run_ranks(2, [](World& world) {
    world.exchange("configuration", "");
    auto& group = world.group("dp", {0, 1});
    auto tensor = at::ones({4}, at::kFloat);
    auto work = group.all_reduce(tensor, ReduceOp::kSum, {"gradient bucket", 2});
    work.wait();
    const auto rows = at::ones({4, 1}, at::kFloat);
    group.all_to_all(tensor.view({4, 1}), rows, {2, 2}, {2, 2}, {"tokens"}).wait();
    if (world.rank() == 0) {
      group.send(tensor, 1, {"activations"}).wait();
    } else {
      group.receive(tensor, 0, {"activations"}).wait();
    }
  });
  std::map<std::string, int> counts;
  for (const auto& flight : FlightWriter::current()->read().flights) {
    EXPECT_FALSE(flight.is_pending()) << flight.purpose;
    EXPECT_EQ(flight.ranks, (std::vector<std::int64_t>{0, 1}));
    EXPECT_NE(flight.wait_ns, 0);
    ++counts[flight.group + " " + std::to_string(flight.number) + " " + operation_name(flight.operation) + " " +
             flight.purpose + " " + std::to_string(flight.bytes) + " " + std::to_string(flight.peer)];
  }
  const std::map<std::string, int> expected{{"store 1 all_gather configuration 0 -1", 2},
                                            {"dp 0 barrier connections of the group 0 -1", 2},
                                            {"dp 1 all_reduce gradient bucket 2 16 -1", 2},
                                            {"dp 2 all_to_all tokens 16 -1", 2},
                                            {"dp 1 send activations 16 1", 1},
                                            {"dp 1 receive activations 16 0", 1}};
  EXPECT_EQ(counts, expected);
}

TEST(GroupRecord, CallsAreSpans) {
  if (!lens::kIsLensBuilt) return;
  lens::MemoryTelemetry memory(lens::group_bit(lens::Group::kCommunication));
  testing::run_ranks(2, [](World& world) {
    auto tensor = at::ones({4}, at::kFloat);
    auto first = world.all().all_reduce(tensor, ReduceOp::kSum, {"gradient bucket", 2});
    EXPECT_FALSE(lens::current_context());
    first.wait();
    world.all().barrier({"save"});
  });
  int num_reductions = 0;
  for (const auto& span : memory.spans()) {
    if (span.name != "megatron.comm.all_reduce") continue;
    ++num_reductions;
    EXPECT_EQ(attribute(span, "megatron.comm.group"), lens::StoredValue(std::string("world")));
    EXPECT_EQ(attribute(span, "megatron.comm.purpose"), lens::StoredValue(std::string("gradient bucket 2")));
    EXPECT_EQ(attribute(span, "megatron.comm.bytes"), lens::StoredValue(std::int64_t{16}));
    EXPECT_EQ(attribute(span, "megatron.comm.sequence"), lens::StoredValue(std::int64_t{1}));
  }
  EXPECT_EQ(num_reductions, 2);
}

TEST(GroupRecord, NoSpansWhereTheGroupIsOff) {
  if (!lens::kIsLensBuilt) return;
  lens::MemoryTelemetry memory(lens::group_bit(lens::Group::kStep));
  testing::run_ranks(2, [](World& world) { world.all().barrier({"test"}); });
  EXPECT_TRUE(memory.spans().empty());
}

}  // namespace
}  // namespace pharos::comm
