// Counters over recorded moments: units, wraps, resets, ports that come and go.
#include "pharos/profile/counters/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/profile/counters/recorded_tree.h"

namespace pharos::profile {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(Growth, TellsWrapsFromResets) {
  constexpr std::uint64_t k32 = std::uint64_t{1} << 32;
  struct Case {
    const char* what;
    std::uint64_t previous, current;
    int width_bits;
    std::uint64_t count;
    bool is_reset;
  };
  const Case kCases[] = {
      {"grows", 10, 17, 64, 7, false},
      {"stands", 10, 10, 32, 0, false},
      {"32 bits wrap", k32 - 5, 3, 32, 8, false},
      {"32 bits wrap at their end", k32 - 1, 0, 32, 1, false},
      {"too low to wrap", k32 / 4, 3, 32, 3, true},
      {"falls within the upper half", k32 - 5, k32 - 9, 32, k32 - 9, true},
      {"of 64 bits, at 32", k32 - 5, 3, 64, 3, true},
      {"was above 32 bits", k32 + 5, 3, 32, 3, true},
      {"64 bits wrap", ~std::uint64_t{0} - 1, 2, 64, 4, false},
      {"64 bits wrap where 32 were possible", ~std::uint64_t{0} - 1, 2, 32, 4, false},
      {"set to zero", 5, 0, 64, 0, true},
  };
  for (const Case& each : kCases) {
    const Growth growth = growth_of(each.previous, each.current, each.width_bits);
    EXPECT_EQ(growth.count, each.count) << each.what;
    EXPECT_EQ(growth.is_reset, each.is_reset) << each.what;
  }
}

const Port kEfa0{PortKind::kInfiniband, "rdmap16s27", "1"};
const Port kEfa1{PortKind::kInfiniband, "rdmap32s27", "1"};
const Port kEfa2{PortKind::kInfiniband, "rdmap48s27", "1"};
const Port kEthernet{PortKind::kNetwork, "ens5", ""};

TEST(TrafficMeter, FollowsEfaDevicesThatComeAndGo) {
  RecordedTree tree("efa.txt");
  TrafficMeter meter;
  tree.advance_to("start");
  for (const auto& [port, traffic] : meter.advance(read_counter_tree(tree.root()))) {
    for (const auto& [label, count] : traffic.bytes) EXPECT_EQ(count, 0u) << port.name() << " " << label;
    EXPECT_THAT(traffic.events, IsEmpty()) << port.name();
  }

  tree.advance_to("traffic");
  PortTraffic all = meter.advance(read_counter_tree(tree.root()));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_THAT(all[kEfa0].bytes,
              ElementsAre(Pair("rdma_read", 10), Pair("rdma_write", 20), Pair("rdma_write_receive", 30),
                          Pair("receive", 600), Pair("transmit", 500)));
  EXPECT_THAT(all[kEfa0].events, ElementsAre(Pair("retrans_timeout_events", 2)));
  EXPECT_THAT(all[kEfa1].bytes, ElementsAre(Pair("receive", 0), Pair("transmit", 1)));
  EXPECT_THAT(all[kEthernet].bytes, ElementsAre(Pair("receive", 2), Pair("transmit", 1)));
  EXPECT_THAT(all[kEthernet].events, IsEmpty());

  tree.advance_to("device_gone_and_file_unreadable");
  all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_EQ(all.count(kEfa1), 0u);
  EXPECT_EQ(all[kEfa0].bytes["transmit"], 100u);
  EXPECT_EQ(all[kEfa0].bytes.count("receive"), 0u);

  tree.advance_to("device_back_after_reset");
  all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_THAT(all[kEfa1].bytes, ElementsAre(Pair("receive", 80), Pair("transmit", 70)));
  EXPECT_EQ(all[kEfa1].num_resets, 2u);
  EXPECT_EQ(all[kEfa0].bytes["receive"], 100u) << "what the unreadable moment missed";
  EXPECT_EQ(all[kEfa0].num_resets, 0u);
  EXPECT_THAT(all[kEfa2].bytes, ElementsAre(Pair("transmit", 0))) << "a new device counts from here on";
}

TEST(TrafficMeter, CountsWordsAndWrapsOfInfiniband) {
  const Port first{PortKind::kInfiniband, "mlx5_0", "1"}, second{PortKind::kInfiniband, "mlx5_0", "2"};
  RecordedTree tree("mlx5.txt");
  TrafficMeter meter;
  tree.advance_to("start");
  meter.advance(read_counter_tree(tree.root()));

  tree.advance_to("wraps");
  PortTraffic all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_THAT(all[first].bytes, ElementsAre(Pair("receive", 4 * 300), Pair("transmit", 4 * 25)));
  EXPECT_THAT(all[first].events, ElementsAre(Pair("out_of_sequence", 2), Pair("symbol_error", 3)));
  EXPECT_THAT(all[second].bytes, ElementsAre(Pair("receive", 4 * 2000000000ull), Pair("transmit", 4 * 25)));

  tree.advance_to("reset_above_32_bits");
  all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_THAT(all[second].bytes, ElementsAre(Pair("receive", 4 * 40), Pair("transmit", 0)));
  EXPECT_EQ(all[second].num_resets, 1u);
  EXPECT_EQ(all[first].bytes["transmit"], 4 * 5u);
  EXPECT_EQ(all[first].num_resets, 1u);

  tree.advance_to("second_port_gone");
  all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_EQ(all.count(second), 0u);
  EXPECT_EQ(all[first].bytes["transmit"], 4u);
}

TEST(CounterTree, ReadsTheLoopbackOnlyWhereItIsAlone) {
  RecordedTree tree("efa.txt");
  tree.write("class/net/lo/statistics/tx_bytes", "17");
  Reading reading = read_counter_tree(tree.root());
  ASSERT_EQ(reading.size(), 1u);
  EXPECT_EQ(reading[0].port.name(), "lo");
  EXPECT_EQ(reading[0].values[0].count, 17u);
  tree.write("class/net/eth0/statistics/tx_bytes", "18");
  reading = read_counter_tree(tree.root());
  ASSERT_EQ(reading.size(), 1u);
  EXPECT_EQ(reading[0].port.name(), "eth0");
}

TEST(CounterTree, CountsOnceWhatAPortShowsTwice) {
  RecordedTree tree("efa.txt");
  const std::string port = "class/infiniband/bnxt_re0/ports/1/";
  tree.write(port + "counters/port_xmit_data", "250");
  tree.write(port + "hw_counters/tx_bytes", "1000");
  tree.write(port + "hw_counters/rx_bytes", "2000");
  TrafficMeter meter;
  meter.advance(read_counter_tree(tree.root()));
  tree.write(port + "counters/port_xmit_data", "500");
  tree.write(port + "hw_counters/tx_bytes", "2000");
  tree.write(port + "hw_counters/rx_bytes", "2003");
  PortTraffic all = meter.advance(read_counter_tree(tree.root()));
  EXPECT_THAT(all[(Port{PortKind::kInfiniband, "bnxt_re0", "1"})].bytes,
              ElementsAre(Pair("receive", 3), Pair("transmit", 1000)));
}

TEST(CounterTree, IsEmptyWhereThereIsNothingToRead) {
  const lens::TemporaryFolder folder;
  EXPECT_TRUE(read_counter_tree(folder.path()).empty());
  EXPECT_TRUE(read_counter_tree(folder.path() / "absent").empty());
}

TEST(CounterTree, LeavesOutWhatIsNoNumber) {
  RecordedTree tree("efa.txt");
  for (const char* value : {"", "N/A (no PMA)", "-1", "1e3", "99999999999999999999999", "0x10"}) {
    tree.write("class/net/eth0/statistics/tx_bytes", value);
    EXPECT_TRUE(read_counter_tree(tree.root()).empty()) << value;
  }
}

}  // namespace
}  // namespace pharos::profile
