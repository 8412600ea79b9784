#include "pharos/launch/doctor/image/image.h"

#include <gtest/gtest.h>

#include "pharos/base/clock.h"
#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using testing::find;
using testing::RecordedNode;

struct Case {
  const char* wanted;
  FoundPart found;
  Verdict verdict;
};

TEST(ImageCheck, APartMustBeThereInItsVersion) {
  const Case cases[] = {
      {"2.29.3-1", {.version = "2.29.3"}, Verdict::kOk},
      {"2.11.0", {.version = "2.11.0+cu128"}, Verdict::kOk},
      {"12.8.1", {.version = "12.8"}, Verdict::kOk},
      {"2.5.1", {.version = "2.5"}, Verdict::kOk},
      {"2.29.3-1", {.version = "2.29.30"}, Verdict::kFailure},
      {"2.29.3-1", {.version = "2.27.5"}, Verdict::kFailure},
      {"3.5.19-1", {.version = "", .path = "/usr/lib/libnvshmem_host.so.3"}, Verdict::kNote},
      {"3.5.19-1", {.version = "", .path = {}, .error = "cannot open shared object file"}, Verdict::kFailure},
      {"1.19.2", {.version = "", .path = {}, .error = {}, .needs_driver = true}, Verdict::kNote},
  };
  for (const Case& one : cases)
    EXPECT_EQ(judge_part("PART", one.wanted, one.found).verdict, one.verdict) << one.wanted << " " << one.found.version;
}

TEST(ImageCheck, OnlyWhatTheTableNamesIsLookedFor) {
  RecordedNode recorded;
  recorded.write("/etc/os-release", "NAME=\"Debian\"\nVERSION_ID=\"12\"");
  const std::int64_t deadline_ns = base::monotonic_ns() + 60'000'000'000;
  const ImageOptions good{.versions = {{"DEBIAN_VERSION", "12"}, {"TORCH_VERSION", "2.13.0"}, {"SOMETHING", "1"}},
                          .libtorch_version = "2.13.0+cpu",
                          .num_recipes = 3,
                          .compute = [] {}};
  const Findings findings = check_image(recorded.node(), good, deadline_ns);
  EXPECT_EQ(worst_of(findings), Verdict::kNote);
  EXPECT_EQ(find(findings, "image", "SOMETHING").verdict, Verdict::kNote);
  EXPECT_EQ(find(findings, "image", "DEBIAN_VERSION").verdict, Verdict::kOk);
  const ImageOptions bad{
      .versions = {{"DEBIAN_VERSION", "13"}}, .libtorch_version = "2.13.0", .num_recipes = 0, .compute = [] {
        throw std::runtime_error("wrong");
      }};
  const Findings faults = check_image(recorded.node(), bad, deadline_ns);
  for (const char* subject : {"recipes", "libtorch", "DEBIAN_VERSION"})
    EXPECT_EQ(find(faults, "image", subject).verdict, Verdict::kFailure) << subject;
}

}  // namespace
}  // namespace pharos::launch
