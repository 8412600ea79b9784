#include "pharos/launch/environment/environment_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "pharos/launch/environment/detect_profile.h"

namespace pharos::launch {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using Texts = std::vector<std::string>;

struct Case {
  NetworkProfile profile;
  Texts overrides;
  std::map<std::string, std::string> user;
  const char* warning;  ///< part of one; empty: there is none
};

TEST(EnvironmentWarnings, HarmIsNamedWithItsRemedy) {
  constexpr auto kEfa = NetworkProfile::kEfa;
  constexpr auto kIb = NetworkProfile::kIb;
  constexpr auto kTcp = NetworkProfile::kTcp;
  const Texts tensor = {"model.tensor_model_parallel_size=2"};
  const Texts deterministic = {"model.deterministic_mode=true"};
  const Case kCases[] = {
      {kEfa, {}, {{"FI_PROVIDER", "tcp"}}, "FI_PROVIDER=tcp (environment): libfabric does not take EFA"},
      {kIb, {}, {{"FI_PROVIDER", "tcp"}}, ""},
      {kEfa, {}, {{"FI_EFA_USE_DEVICE_RDMA", "0"}}, "copied through the host"},
      {kEfa, {}, {{"FI_EFA_FORK_SAFE", "0"}}, "Linux before 5.13"},
      {kEfa, {}, {{"NCCL_NET", "Socket"}}, "NCCL_NET=Socket (environment): the fast network is left unused"},
      {kTcp, {}, {{"NCCL_NET", "Socket"}}, ""},
      {kEfa, {}, {{"NCCL_NET_PLUGIN", "none"}}, "NCCL_GIN_TYPE=2 (profile efa): device-initiated transfers"},
      {kEfa, {}, {{"NCCL_NET_PLUGIN", ""}}, "without aws-ofi-nccl"},
      {kEfa, {}, {{"NCCL_NET_PLUGIN", "/opt/x/libnccl-net-ofi.so"}}, ""},
      {kEfa, {}, {{"NCCL_GIN_TYPE", "3"}}, "Set 2 (proxy)"},
      {kEfa, {"++env_vars.LD_LIBRARY_PATH=/usr/lib"}, {}, "EFA's libfabric is not on the search path"},
      {kEfa, {}, {{"LD_LIBRARY_PATH", "/usr/lib"}}, ""},
      {kIb, {}, {{"NCCL_IB_DISABLE", "1"}}, "InfiniBand is switched off"},
      {kIb, {}, {{"NCCL_IB_DISABLE", "0"}}, ""},
      {kTcp, {}, {{"NCCL_IB_DISABLE", "1"}}, ""},
      {kIb, {}, {{"NCCL_P2P_DISABLE", "1"}}, "slower paths"},
      {kTcp, tensor, {}, ""},
      {kTcp, tensor, {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, "Set 1, or unset it"},
      {kTcp, {}, {{"CUDA_DEVICE_MAX_CONNECTIONS", "16"}}, ""},
      {kTcp,
       {"ddp.data_parallel_sharding_strategy=optim_grads_params"},
       {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}},
       "never 1"},
      {kTcp,
       {"model.num_moe_experts=8", "model.moe_token_dispatcher_type=flex"},
       {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}},
       "flex dispatcher"},
      {kTcp, {}, {{"NCCL_ALGO", "Tree"}}, "can no longer choose"},
      {kTcp, deterministic, {}, ""},
      {kTcp, deterministic, {{"NCCL_ALGO", "Tree"}}, "another order"},
      {kTcp, deterministic, {{"CUBLAS_WORKSPACE_CONFIG", ":0:0"}}, "Set :4096:8"},
      {kTcp, deterministic, {{"CUBLAS_WORKSPACE_CONFIG", ":16:8"}}, ""},
      {kTcp, {}, {{"NCCL_DEBUG", "TRACE"}}, "fills the disk"},
      {kTcp, {}, {{"CUDA_LAUNCH_BLOCKING", "1"}}, "nothing overlaps"},
      {kTcp, {}, {{"OMP_NUM_THREADS", "5"}}, "Set at most 4"},
      {kTcp, {}, {{"OMP_NUM_THREADS", "4"}}, ""},
      {kTcp, {"++env_vars.NVTE_FUSED_ATTN=1"}, {}, "only Transformer Engine reads it"},
      {kTcp, {"ddp.nccl_ub=true", "++env_vars.NCCL_NVLS_ENABLE=0"}, {}, "ddp.nccl_ub asks"},
      {kTcp, {"++env_vars.LD_PRELOAD=x"}, {}, "before Pharos can set it"},
  };
  for (const Case& test : kCases) {
    Texts overrides = test.overrides;
    overrides.insert(overrides.begin(), "dist.device=cuda");
    const EnvironmentPlan plan =
        plan_environment(config::resolve({.overrides = overrides}), test.profile, lens::MapEnvironment(test.user),
                         {.gpus_per_node = 8, .cores_per_node = 32});
    const std::string shown = testing::PrintToString(test.user) + testing::PrintToString(test.overrides);
    if (*test.warning == '\0') {
      EXPECT_THAT(plan.warnings, IsEmpty()) << shown;
    } else {
      EXPECT_THAT(plan.warnings, Contains(HasSubstr(test.warning))) << shown;
    }
  }
}

TEST(DetectProfile, TakesTheDevicesOfTheFolder) {
  const struct {
    Texts devices;  ///< NAME or NAME=DRIVER
    NetworkProfile profile;
    const char* evidence;
  } kCases[] = {
      {{}, NetworkProfile::kTcp, "no EFA or InfiniBand device"},
      {{"rdmap16s27", "rdmap0s6", "rdmap32s1"}, NetworkProfile::kEfa, "3 EFA devices (rdmap0s6, rdmap16s27, …)"},
      {{"efa_0"}, NetworkProfile::kEfa, "1 EFA device (efa_0)"},
      {{"mlx5_0", "mlx5_bond_0"}, NetworkProfile::kIb, "2 InfiniBand devices (mlx5_0, mlx5_bond_0)"},
      {{"mlx5_0", "rdmap0s6"}, NetworkProfile::kEfa, "1 EFA device"},
      {{"ibp12s0=mlx5_core"}, NetworkProfile::kIb, "ibp12s0"},
      {{"device9=efa"}, NetworkProfile::kEfa, "device9"},
      {{"hfi1_0", "rxe0"}, NetworkProfile::kTcp, "no EFA"},
  };
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() / ("pharos_sysfs_" + std::to_string(::getpid()));
  for (const auto& test : kCases) {
    const std::filesystem::path folder = root / "class" / "infiniband";
    std::filesystem::create_directories(folder);
    for (const std::string& device : test.devices) {
      const std::size_t equals = device.find('=');
      const std::filesystem::path inside = folder / device.substr(0, equals) / "device";
      std::filesystem::create_directories(inside);
      if (equals != std::string::npos)
        std::filesystem::create_symlink("../../../bus/pci/drivers/" + device.substr(equals + 1), inside / "driver");
    }
    const DetectedProfile found = detect_network_profile(root);
    EXPECT_EQ(found.profile, test.profile) << testing::PrintToString(test.devices);
    EXPECT_THAT(found.evidence, HasSubstr(test.evidence));
    std::filesystem::remove_all(root);
  }
  EXPECT_EQ(detect_network_profile(root).profile, NetworkProfile::kTcp);
}

}  // namespace
}  // namespace pharos::launch
