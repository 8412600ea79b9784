// Checks of one node on recorded ones.
#include "pharos/launch/doctor/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/launch/doctor/checks/control_group.h"
#include "pharos/launch/doctor/checks/speed.h"
#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using testing::find;
using ::testing::HasSubstr;
using testing::RecordedNode;

const std::string kCpu = "/sys/devices/system/cpu";

void record_cpus(RecordedNode& recorded, const std::string& allowed) {
  recorded.write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz")
      .write(kCpu + "/online", "0-7")
      .write(kCpu + "/smt/active", "1")
      .write("/sys/devices/system/node/online", "0-1")
      .write("/proc/self/status", "Name:\tpharos\nCpus_allowed_list:\t" + allowed);
}

TEST(CpuCheck, CoresOfMachineProcessAndControlGroup) {
  RecordedNode recorded;
  record_cpus(recorded, "0-7");
  const Findings whole = check_cpu(recorded.node());
  EXPECT_EQ(find(whole, "cpu").value, "Some CPU @ 3 GHz, 8 cores (hyper-threads), 2 NUMA nodes");
  EXPECT_EQ(find(whole, "cpu").verdict, Verdict::kOk);
  recorded.write("/proc/self/cgroup", "0::/job/step").write("/sys/fs/cgroup/job/cpu.max", "250000 100000");
  recorded.write("/sys/fs/cgroup/job/step/cpu.max", "max 100000");
  const Findings limited = check_cpu(recorded.node());
  EXPECT_EQ(find(limited, "cpu").verdict, Verdict::kWarning);
  EXPECT_THAT(find(limited, "cpu").remedy, HasSubstr("OMP_NUM_THREADS to at most 2"));
}

TEST(CpuCheck, AffinityAndThrottling) {
  RecordedNode recorded;
  record_cpus(recorded, "3");
  recorded.write(kCpu + "/cpu0/cpufreq/scaling_governor", "powersave")
      .write(kCpu + "/cpu0/cpufreq/cpuinfo_max_freq", "3600000")
      .write(kCpu + "/cpu0/cpufreq/scaling_max_freq", "2000000")
      .write(kCpu + "/cpu1/thermal_throttle/core_throttle_count", "12");
  const Findings findings = check_cpu(recorded.node());
  EXPECT_THAT(find(findings, "cpu").value, HasSubstr("this process may use 1"));
  EXPECT_EQ(find(findings, "cpu").verdict, Verdict::kWarning);
  EXPECT_THAT(find(findings, "cpu", "governor").value, HasSubstr("2.00 GHz of 3.60 GHz"));
  EXPECT_EQ(find(findings, "cpu", "throttling").data["events"], 12);
}

TEST(ControlGroup, BothVersionsAndTheTightestLimitCounts) {
  RecordedNode second;
  second.write("/proc/self/cgroup", "0::/a/b")
      .write("/sys/fs/cgroup/a/memory.max", "1000000")
      .write("/sys/fs/cgroup/a/b/memory.max", "max");
  EXPECT_EQ(control_group_memory_bytes(second.node()), 1'000'000);
  EXPECT_EQ(control_group_cpus(second.node()), 0);
  RecordedNode first;
  first.write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x")
      .write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000")
      .write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000")
      .write("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(control_group_cpus(first.node()), 4);
  EXPECT_EQ(control_group_memory_bytes(first.node()), std::nullopt);
}

TEST(MemoryCheck, ShortMemoryAndSwap) {
  RecordedNode recorded;
  recorded.write("/proc/meminfo",
                 "MemTotal:       4000000 kB\nMemAvailable:    500000 kB\nSwapTotal:      2000000 kB\n"
                 "SwapFree:       1000000 kB\nHugePages_Total:       5");
  recorded.write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  const Findings findings = check_memory(recorded.node());
  EXPECT_EQ(find(findings, "memory").verdict, Verdict::kWarning);
  EXPECT_EQ(find(findings, "memory", "swap").verdict, Verdict::kWarning);
  EXPECT_EQ(find(findings, "memory", "huge pages").value, "transparent: never; reserved: 5");
  EXPECT_EQ(find(findings, "memory", "/dev/shm").verdict, Verdict::kWarning);
}

TEST(MemoryCheck, WhatIsNoAmountIsUnknown) {
  for (const char* damaged :
       {"", "MemTotal: 0 kB\nMemAvailable: 5 kB", "MemTotal: 9 kB\nMemAvailable: -5 kB\nSwapTotal: 1 kB",
        "MemTotal: x\nSwapTotal: 9223372036854775807 kB\nSwapFree: 0 kB"}) {
    RecordedNode recorded;
    recorded.write("/proc/meminfo", damaged);
    const Findings findings = check_memory(recorded.node());
    for (const char* subject : {"", "swap"}) {
      EXPECT_EQ(find(findings, "memory", subject).value, "unknown") << damaged;
      EXPECT_EQ(find(findings, "memory", subject).verdict, Verdict::kNote) << damaged;
    }
  }
}

TEST(LimitsCheck, LockedMemoryMattersWhereThereIsRdma) {
  RecordedNode recorded;
  recorded.write("/proc/self/limits",
                 "Limit                     Soft Limit           Hard Limit           Units\n"
                 "Max locked memory         8388608              8388608              bytes\n"
                 "Max open files            1024                 524288               files\n"
                 "Max processes             unlimited            unlimited            processes");
  EXPECT_EQ(find(check_limits(recorded.node()), "limits", "locked memory").verdict, Verdict::kNote);
  recorded.add_rdma("rdmap113s0", "0x1d0f", "4: ACTIVE", "Unspecified");
  const Findings findings = check_limits(recorded.node());
  EXPECT_EQ(find(findings, "limits", "locked memory").verdict, Verdict::kFailure);
  EXPECT_EQ(find(findings, "limits", "open files").verdict, Verdict::kWarning);
  EXPECT_EQ(find(findings, "limits", "processes").value, "unlimited");
}

TEST(ClockCheck, ASlowSourceHasARemedy) {
  RecordedNode recorded;
  const std::string folder = "/sys/devices/system/clocksource/clocksource0";
  recorded.write(folder + "/current_clocksource", "hpet").write(folder + "/available_clocksource", "hpet tsc");
  EXPECT_THAT(find(check_clock(recorded.node()), "clock", "source").remedy, HasSubstr("write tsc to"));
  recorded.write(folder + "/current_clocksource", "tsc");
  EXPECT_EQ(find(check_clock(recorded.node()), "clock", "source").verdict, Verdict::kOk);
}

TEST(VersionsCheck, DriverAndModules) {
  RecordedNode recorded;
  recorded
      .write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Mon Jan 20 2025\nGCC version: 12")
      .write("/sys/module/efa/version", "2.15.0g")
      .write("/proc/sys/kernel/osrelease", "6.8.0-aws");
  recorded.node().versions = {{"pharos", "0.1.0"}};
  const Findings findings = check_versions(recorded.node());
  EXPECT_EQ(find(findings, "versions", "NVIDIA driver").value, "570.86.15");
  EXPECT_EQ(find(findings, "versions", "module efa").data["version"], "2.15.0g");
  EXPECT_EQ(find(findings, "versions", "kernel").value, "6.8.0-aws");
  EXPECT_EQ(find(findings, "versions", "pharos").value, "0.1.0");
}

TEST(ContainerCheck, MountsThatWereAskedFor) {
  RecordedNode recorded(std::map<std::string, std::string>{{"MOUNT", ".:/workspace,/fsx:/fsx"}});
  recorded.write("/proc/self/mounts", "overlay / overlay rw 0 0\n10.0.0.1@tcp:/x /fsx lustre ro,flock 0 0");
  recorded.write("/workspace/run.yaml", "x");
  const Findings findings = check_container(recorded.node());
  EXPECT_THAT(findings[0].value, HasSubstr("overlay"));
  EXPECT_EQ(find(findings, "container", "/workspace").verdict, Verdict::kOk);
  EXPECT_THAT(findings[1].value, HasSubstr("lustre from 10.0.0.1@tcp:/x, read-only"));
  EXPECT_EQ(findings.back().subject, "/fsx");
  EXPECT_EQ(findings.back().verdict, Verdict::kFailure);
}

struct VariableCase {
  std::map<std::string, std::string> variables;
  Verdict verdict;
  const char* subject;
};

TEST(VariablesCheck, SaysWhichDoHarm) {
  const VariableCase cases[] = {
      {{}, Verdict::kOk, ""},
      {{{"CUDA_LAUNCH_BLOCKING", "1"}}, Verdict::kWarning, "CUDA_LAUNCH_BLOCKING"},
      {{{"NCCL_DEBUG", "WARN"}}, Verdict::kOk, ""},
      {{{"NCCL_ALGO", "Ring"}}, Verdict::kNote, "NCCL_ALGO"},
      {{{"OMP_NUM_THREADS", "64"}}, Verdict::kWarning, "OMP_NUM_THREADS"},
      {{{"OMP_NUM_THREADS", "8"}}, Verdict::kOk, ""},
      {{{"OMP_NUM_THREADS", "many"}}, Verdict::kFailure, "OMP_NUM_THREADS"},
      {{{"MASTER_ADDR", "localhost"}, {"SLURM_NNODES", "2"}}, Verdict::kFailure, "MASTER_ADDR"},
      {{{"MASTER_ADDR", "localhost"}, {"SLURM_NNODES", "1"}}, Verdict::kOk, ""},
      {{{"GLOO_SOCKET_IFNAME", "ens5"}}, Verdict::kFailure, "GLOO_SOCKET_IFNAME"},
      {{{"CUDA_DEVICE_MAX_CONNECTIONS", "64"}}, Verdict::kFailure, "CUDA_DEVICE_MAX_CONNECTIONS"},
      {{{"TMPDIR", "/nowhere/at/all"}}, Verdict::kFailure, "TMPDIR"},
  };
  for (const VariableCase& one : cases) {
    RecordedNode recorded(one.variables);
    record_cpus(recorded, "0-7");
    const Findings findings = check_variables(recorded.node());
    ASSERT_EQ(findings.size(), 1) << one.subject;
    EXPECT_EQ(findings[0].verdict, one.verdict) << one.subject;
    EXPECT_EQ(findings[0].subject, one.subject);
  }
}

TEST(SharedCheck, AFolderIsMeasuredAndLeftAsItWas) {
  RecordedNode recorded;
  recorded.node().shared_folder = recorded.node().root.string();
  const Findings findings = check_shared(recorded.node());
  EXPECT_GT(find(findings, "shared", "transfer").data["write_megabytes_per_s"].get<double>(), 0);
  EXPECT_EQ(find(findings, "shared", "lock").verdict, Verdict::kOk);
  EXPECT_NE(find(findings, "shared", "small files").value, "");
  EXPECT_TRUE(std::filesystem::is_empty(recorded.node().root));
  recorded.node().shared_folder = "/nowhere/at/all";
  EXPECT_EQ(find(check_shared(recorded.node()), "shared").verdict, Verdict::kFailure);
  recorded.node().shared_folder = "";
  EXPECT_EQ(find(check_shared(recorded.node()), "shared").verdict, Verdict::kNote);
}

TEST(DiskCheck, AFolderThatIsNotMadeYetIsLookedAtWhereItWillBe) {
  RecordedNode recorded;
  recorded.node().run_folder = (recorded.node().root / "runs/first").string();
  EXPECT_EQ(find(check_disk(recorded.node()), "disk", "run folder").data["path"], recorded.node().root.string());
}

TEST(DiskCheck, WhatIsNoFolderIsAFailure) {
  RecordedNode recorded;
  recorded.write("/file", "x");
  const std::string root = recorded.node().root.string(), file = recorded.node().path("/file").string();
  struct Case {
    std::string run_folder, temporary_folder;
    const char* subject;
    std::string value;
  };
  for (const Case& one : {Case{file, root, "run folder", file + " is not a folder"},
                          {file + "/below", root, "run folder", file + " is not a folder"},
                          {root, file, "temporary", file + " is not a folder"},
                          {root, "/nowhere/at/all", "temporary", "/nowhere/at/all does not exist"}}) {
    recorded.node().run_folder = one.run_folder;
    recorded.node().temporary_folder = one.temporary_folder;
    const Finding finding = find(check_disk(recorded.node()), "disk", one.subject);
    EXPECT_EQ(finding.verdict, Verdict::kFailure) << one.value;
    EXPECT_EQ(finding.value, one.value);
    EXPECT_THAT(finding.remedy, HasSubstr(one.subject == std::string("temporary") ? "set TMPDIR" : "Choose a folder"));
  }
}

TEST(SpeedCheck, ASlowDeviceOfANode) {
  const Findings findings = judge_measurements("gemm", "GFLOP/s",
                                               {{.device = "cuda:0", .values = {100, 101}},
                                                {.device = "cuda:1", .values = {100, 99}},
                                                {.device = "cuda:2", .values = {50, 51}},
                                                {.device = "cuda:3", .values = {100, 20, 180}}});
  EXPECT_EQ(find(findings, "gemm", "cuda:0").verdict, Verdict::kOk);
  EXPECT_EQ(find(findings, "gemm", "cuda:2").verdict, Verdict::kWarning);
  EXPECT_EQ(find(findings, "gemm", "cuda:3").verdict, Verdict::kNote);
  EXPECT_EQ(judge_measurements("gemm", "GFLOP/s", {}).front().verdict, Verdict::kNote);
}

}  // namespace
}  // namespace pharos::launch
