// Recorded nodes: what NCCL would take, and what is said about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/launch/doctor/network/provider.h"
#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::ElementsAre;
using testing::find;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecordedNode;

void record_interfaces(RecordedNode& recorded) {
  for (const auto& [name, state] : {std::pair{"eth0", "up"}, std::pair{"eth1", "down"}, std::pair{"docker0", "down"}}) {
    const std::string folder = std::string("/sys/class/net/") + name;
    recorded.write(folder + "/operstate", state).write(folder + "/mtu", "1500");
    if (std::string(name) != "docker0") recorded.write(folder + "/device/vendor", "0x1d0f");
  }
  recorded.write("/sys/class/net/eth0/speed", "100000").write("/sys/class/net/lo/operstate", "unknown");
}

TEST(Network, AnEfaNode) {
  RecordedNode recorded;
  record_interfaces(recorded);
  for (const char* name : {"rdmap113s0", "rdmap114s0"}) recorded.add_rdma(name, "0x1d0f", "4: ACTIVE", "Unspecified");
  const auto devices = list_rdma_devices(recorded.node());
  ASSERT_EQ(devices.size(), 2);
  EXPECT_TRUE(devices[0].is_efa && devices[0].has_active_port());
  const Findings rdma = judge_rdma_devices(devices);
  ASSERT_EQ(rdma.size(), 1);  // they are alike
  EXPECT_EQ(rdma[0].value, "2 × EFA, ACTIVE, 400 Gb/sec (4X NDR)");
  const Findings interfaces = judge_interfaces(list_interfaces(recorded.node()));
  EXPECT_EQ(interfaces.size(), 2);
  EXPECT_EQ(find(interfaces, "network", "eth0").value, "up, 100 Gb/s, MTU 1500");
  EXPECT_EQ(find(interfaces, "network", "eth1").verdict, Verdict::kNote);
}

TEST(Network, APortThatIsDownIsNamed) {
  RecordedNode recorded;
  recorded.add_rdma("mlx5_0", "0x15b3", "4: ACTIVE", "InfiniBand")
      .add_rdma("mlx5_1", "0x15b3", "1: DOWN", "InfiniBand");
  const Findings findings = judge_rdma_devices(list_rdma_devices(recorded.node()));
  EXPECT_EQ(find(findings, "network", "mlx5_0:1").verdict, Verdict::kOk);
  EXPECT_EQ(find(findings, "network", "mlx5_1:1").verdict, Verdict::kWarning);
}

TEST(Network, ANodeWithoutInterfaces) {
  const RecordedNode recorded;
  EXPECT_EQ(judge_interfaces(list_interfaces(recorded.node())).front().verdict, Verdict::kNote);
}

RdmaDevice device(bool is_efa, const char* state) {
  return {.name = is_efa ? "rdmap113s0" : "mlx5_0", .is_efa = is_efa, .ports = {{.number = "1", .state = state}}};
}

ProviderFacts good_efa() {
  ProviderFacts facts;
  facts.devices = {device(true, "ACTIVE")};
  facts.is_plugin_loaded = true;
  facts.plugin_path = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so";
  facts.plugin_name = "libnccl-net-ofi.so";
  return facts;
}

ProviderFacts good_ib() {
  ProviderFacts facts;
  facts.devices = {device(false, "ACTIVE")};
  return facts;
}

struct Case {
  const char* name;
  std::function<void(ProviderFacts&)> change;
  bool is_efa;
  Verdict verdict;
  const char* network;
  const char* words;  ///< of value or remedy
};

const Case kCases[] = {
    {"efa", [](ProviderFacts&) {}, true, Verdict::kOk, "libfabric with EFA", "libnccl-net-ofi"},
    {"efa named", [](ProviderFacts& f) { f.fi_provider = "efa"; }, true, Verdict::kOk, "libfabric with EFA", ""},
    {"no plug-in",
     [](ProviderFacts& f) {
       f.is_plugin_loaded = false;
       f.plugin_error = "cannot open shared object file";
       f.plugins_elsewhere = {"/opt/amazon/ofi-nccl/lib/libnccl-net.so"};
     },
     true, Verdict::kFailure, "sockets", "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:"},
    {"plug-in in the path that lacks a library",
     [](ProviderFacts& f) {
       f.is_plugin_loaded = false;
       f.nccl_net_plugin = "libnccl-net-ofi.so";
       f.library_path = "/x:/opt/amazon/ofi-nccl/lib";
       f.plugins_elsewhere = {"/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"};
     },
     true, Verdict::kFailure, "sockets", "`ldd /opt/amazon/ofi-nccl/lib/libnccl-net"},
    {"plug-in in the path under another name",
     [](ProviderFacts& f) {
       f.is_plugin_loaded = false;
       f.library_path = "/opt/amazon/ofi-nccl/lib";
       f.plugins_elsewhere = {"/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"};
     },
     true, Verdict::kFailure, "sockets", "export NCCL_NET_PLUGIN=libnccl-net-ofi.so."},
    {"plug-in named, outside the path",
     [](ProviderFacts& f) {
       f.is_plugin_loaded = false;
       f.nccl_net_plugin = "libnccl-net-ofi.so";
       f.plugins_elsewhere = {"/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"};
     },
     true, Verdict::kFailure, "sockets", ":$LD_LIBRARY_PATH. --profile efa"},
    {"plug-in not installed", [](ProviderFacts& f) { f.is_plugin_loaded = false; }, true, Verdict::kFailure, "sockets",
     "Install aws-ofi-nccl"},
    {"plug-in switched off",
     [](ProviderFacts& f) {
       f.is_plugin_loaded = false;
       f.plugin_name = "";
     },
     true, Verdict::kFailure, "sockets", "unset NCCL_NET_PLUGIN"},
    {"other provider", [](ProviderFacts& f) { f.fi_provider = "tcp"; }, true, Verdict::kFailure,
     "libfabric without EFA", "FI_PROVIDER=efa"},
    {"provider excluded", [](ProviderFacts& f) { f.fi_provider = "^efa"; }, true, Verdict::kFailure,
     "libfabric without EFA", ""},
    {"sockets chosen", [](ProviderFacts& f) { f.nccl_net = "Socket"; }, true, Verdict::kFailure, "sockets",
     "unset NCCL_NET"},
    {"verbs on EFA", [](ProviderFacts& f) { f.nccl_net = "IB"; }, true, Verdict::kFailure, "nothing", ""},
    {"no device files", [](ProviderFacts& f) { f.has_device_files = false; }, true, Verdict::kFailure, "sockets",
     "--device=/dev/infiniband"},
    {"efa down", [](ProviderFacts& f) { f.devices = {device(true, "DOWN")}; }, true, Verdict::kFailure, "sockets", ""},
    {"infiniband", [](ProviderFacts&) {}, false, Verdict::kOk, "InfiniBand", "1 device"},
    {"all ports down", [](ProviderFacts& f) { f.devices = {device(false, "DOWN")}; }, false, Verdict::kFailure,
     "sockets", "mlx5_0"},
    {"one port down", [](ProviderFacts& f) { f.devices.push_back(device(false, "INIT")); }, false, Verdict::kWarning,
     "InfiniBand", "less bandwidth"},
    {"switched off", [](ProviderFacts& f) { f.ib_disable = "1"; }, false, Verdict::kFailure, "sockets",
     "unset NCCL_IB_DISABLE"},
    {"not switched off", [](ProviderFacts& f) { f.ib_disable = "0"; }, false, Verdict::kOk, "InfiniBand", ""},
    {"no verbs library", [](ProviderFacts& f) { f.is_verbs_loaded = false; }, false, Verdict::kFailure, "sockets",
     "libibverbs1"},
    {"sockets chosen on IB", [](ProviderFacts& f) { f.nccl_net = "Socket"; }, false, Verdict::kFailure, "sockets", ""},
    {"plain node", [](ProviderFacts& f) { f.devices.clear(); }, false, Verdict::kNote, "sockets", "no RDMA device"},
    {"verbs on a plain node",
     [](ProviderFacts& f) {
       f.devices.clear();
       f.nccl_net = "IB";
     },
     false, Verdict::kFailure, "nothing", ""},
};

TEST(Provider, WhatNcclWouldTake) {
  for (const Case& one : kCases) {
    ProviderFacts facts = one.is_efa ? good_efa() : good_ib();
    one.change(facts);
    const Findings findings = judge_provider(facts);
    ASSERT_EQ(findings.size(), 1) << one.name;
    EXPECT_EQ(findings[0].verdict, one.verdict) << one.name << ": " << findings[0].value;
    EXPECT_EQ(findings[0].data["network"], one.network) << one.name;
    EXPECT_THAT(findings[0].value + findings[0].remedy, HasSubstr(one.words)) << one.name;
  }
}

TEST(Provider, GpuMemoryOutOfReachOfTheNetwork) {
  ProviderFacts facts = good_efa();
  facts.has_gpus = true;
  EXPECT_EQ(find(judge_provider(facts), "provider", "gdrcopy").verdict, Verdict::kWarning);
  EXPECT_EQ(find(judge_provider(facts), "provider", "GPU memory").verdict, Verdict::kWarning);
  facts.has_gdrcopy = facts.has_peer_memory = true;
  EXPECT_EQ(judge_provider(facts).size(), 1);
}

TEST(Provider, AnInterfaceThatIsNotThere) {
  ProviderFacts facts = good_ib();
  facts.interfaces = {{.name = "eth0", .is_up = true, .is_physical = true, .speed_mbps = 1000, .mtu = 1500}};
  facts.socket_interface = "ens";
  EXPECT_EQ(find(judge_provider(facts), "provider", "sockets").verdict, Verdict::kFailure);
  for (const char* good : {"eth", "=eth0", "^docker,lo", "ens,eth"}) {
    facts.socket_interface = good;
    EXPECT_EQ(judge_provider(facts).size(), 1) << good;
  }
  facts.socket_interface = "lo";
  EXPECT_EQ(find(judge_provider(facts), "provider", "sockets").verdict, Verdict::kNote);
}

TEST(Provider, NamesOfThePlugIn) {
  EXPECT_THAT(plugin_names(""), ElementsAre("libnccl-net.so"));
  EXPECT_THAT(plugin_names("none"), IsEmpty());
  EXPECT_THAT(plugin_names("/opt/lib/libnccl-net-ofi.so"), ElementsAre("/opt/lib/libnccl-net-ofi.so"));
  EXPECT_THAT(plugin_names("libnccl-net-ofi.so"), ElementsAre("libnccl-net-ofi.so", "libnccl-net.so"));
  EXPECT_THAT(plugin_names("ofi"), ElementsAre("libnccl-net-ofi.so", "ofi", "libnccl-net.so"));
}

}  // namespace
}  // namespace pharos::launch
