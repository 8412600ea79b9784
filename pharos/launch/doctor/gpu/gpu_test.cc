#include "pharos/launch/doctor/gpu/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using testing::find;
using ::testing::HasSubstr;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

NvmlResult driver_with(const GpuFacts& gpu) {
  return {
      .is_loaded = true, .error = {}, .facts = {.driver_version = "570.86", .cuda_version = "12.8", .devices = {gpu}}};
}

GpuFacts good_gpu() {
  GpuFacts gpu;
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 141 * kGibibyte;
  gpu.free_bytes = 140 * kGibibyte;
  gpu.temperature_celsius = 35;
  gpu.clock_mhz = 345;
  gpu.most_clock_mhz = 1980;
  gpu.uncorrected_errors = 0;
  gpu.link_width = gpu.most_link_width = 16;
  return gpu;
}

struct Case {
  const char* words;  ///< of the value
  Verdict verdict;
  std::function<void(GpuFacts&)> change;
};

TEST(Gpu, EachFaultHasItsVerdict) {
  const Case cases[] = {
      {"NVIDIA H200, 140 GiB free of 141 GiB, 35 °C, 345 MHz of 1980 MHz", Verdict::kOk, [](GpuFacts&) {}},
      {"3 uncorrected", Verdict::kFailure, [](GpuFacts& gpu) { gpu.uncorrected_errors = 3; }},
      {"could not be remapped", Verdict::kFailure, [](GpuFacts& gpu) { gpu.has_failed_rows = true; }},
      {"waits to be remapped", Verdict::kWarning, [](GpuFacts& gpu) { gpu.has_pending_rows = true; }},
      {"hardware slowdown", Verdict::kWarning, [](GpuFacts& gpu) { gpu.throttle_reasons = 0x8; }},
      {"power limit", Verdict::kNote, [](GpuFacts& gpu) { gpu.throttle_reasons = 0x4; }},
      {"MHz", Verdict::kOk, [](GpuFacts& gpu) { gpu.throttle_reasons = 0x1; }},  // idle
      {"hot", Verdict::kWarning, [](GpuFacts& gpu) { gpu.temperature_celsius = 90; }},
      {"8 of 16 lanes", Verdict::kWarning, [](GpuFacts& gpu) { gpu.link_width = 8; }},
      {"process 77, 78", Verdict::kWarning,
       [](GpuFacts& gpu) {
         gpu.processes = {77, 78};
       }},
      {"cannot be seen", Verdict::kWarning, [](GpuFacts& gpu) { gpu.free_bytes = kGibibyte; }},
  };
  for (const Case& one : cases) {
    GpuFacts gpu = good_gpu();
    one.change(gpu);
    const Findings findings = judge_gpus(driver_with(gpu), 1, true);
    EXPECT_EQ(find(findings, "gpu", "0").verdict, one.verdict) << one.words;
    EXPECT_THAT(find(findings, "gpu", "0").value, HasSubstr(one.words));
    EXPECT_EQ(find(findings, "gpu").verdict, Verdict::kOk);
  }
}

TEST(Gpu, NoDriverIsFineUnlessGpusAreExpected) {
  const NvmlResult none{.is_loaded = false, .error = "no such file"};
  EXPECT_EQ(find(judge_gpus(none, std::nullopt, false), "gpu").verdict, Verdict::kNote);
  EXPECT_EQ(find(judge_gpus(none, 0, false), "gpu").verdict, Verdict::kNote);
  EXPECT_EQ(find(judge_gpus(none, 8, false), "gpu").verdict, Verdict::kFailure);
  EXPECT_EQ(find(judge_gpus(none, std::nullopt, true), "gpu").verdict, Verdict::kFailure);
}

TEST(Gpu, MissingDevicesAndABrokenDriver) {
  const NvmlResult one = driver_with(good_gpu());
  EXPECT_EQ(find(judge_gpus(one, 8, true), "gpu").verdict, Verdict::kFailure);
  EXPECT_EQ(find(judge_gpus(one, 0, true), "gpu").verdict, Verdict::kNote);
  NvmlResult broken = one;
  broken.error = "nvmlInit_v2: Driver/library version mismatch";
  EXPECT_THAT(find(judge_gpus(broken, 1, true), "gpu").value, HasSubstr("version mismatch"));
  EXPECT_EQ(find(judge_gpus(broken, 1, true), "gpu").verdict, Verdict::kFailure);
}

TEST(Gpu, XidErrorsOfTheKernelsLog) {
  const auto events = find_xid_events(
      "4,100,5,-;NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
      "4,101,6,-;NVRM: Xid (PCI:0000:9a:00): 79, pid=12\n"
      "4,102,7,-;NVRM: Xid (PCI:0000:04:00): 31, pid=12, MMU Fault\n"
      "6,103,8,-;eth0: link up\n");
  ASSERT_EQ(events.size(), 3);
  const Findings findings = judge_xid_events(events);
  ASSERT_EQ(findings.size(), 2);
  EXPECT_EQ(find(findings, "gpu", "Xid 79").verdict, Verdict::kWarning);
  EXPECT_EQ(find(findings, "gpu", "Xid 79").data["count"], 2);
  EXPECT_EQ(find(findings, "gpu", "Xid 31").verdict, Verdict::kNote);
  EXPECT_TRUE(find_xid_events("").empty());
}

}  // namespace
}  // namespace pharos::launch
