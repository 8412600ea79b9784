#include "pharos/launch/doctor/log/nccl_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/file.h"
#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::ElementsAre;
using testing::find;
using ::testing::HasSubstr;
using ::testing::Pair;

NcclLog read(const std::string& name) {
  NcclLog log;
  read_nccl_log(base::read_file(std::string(PHAROS_TEST_DATA) + "/doctor/" + name), log);
  return log;
}

struct Case {
  const char* file;
  bool expects_gin;
  Verdict network, gin;
};

class NcclLogVerdict : public ::testing::TestWithParam<Case> {};

TEST_P(NcclLogVerdict, OfNetworkAndGin) {
  const Case& param = GetParam();
  const Findings findings = judge_nccl_log(read(param.file), param.expects_gin);
  EXPECT_EQ(find(findings, "log", "network").verdict, param.network) << find(findings, "log", "network").value;
  EXPECT_EQ(find(findings, "log", "GIN").verdict, param.gin) << find(findings, "log", "GIN").value;
}

INSTANTIATE_TEST_SUITE_P(Samples, NcclLogVerdict,
                         ::testing::Values(Case{"efa_gin.log", true, Verdict::kOk, Verdict::kOk},
                                           Case{"silent_sockets.log", false, Verdict::kFailure, Verdict::kNote},
                                           Case{"silent_sockets.log", true, Verdict::kFailure, Verdict::kFailure},
                                           Case{"plain.log", false, Verdict::kWarning, Verdict::kNote},
                                           Case{"infiniband.log", false, Verdict::kOk, Verdict::kNote},
                                           Case{"mixed.log", false, Verdict::kFailure, Verdict::kNote},
                                           Case{"gin_missing.log", false, Verdict::kOk, Verdict::kFailure}));

TEST(NcclLog, ReadsWhatStandsThere) {
  const NcclLog log = read("efa_gin.log");
  EXPECT_EQ(log.nccl_version, "2.29.3+cuda12.8");
  EXPECT_EQ(log.plugin_version, "1.19.2");
  EXPECT_THAT(log.networks, ElementsAre(Pair("Libfabric", 2)));
  EXPECT_THAT(log.providers, ElementsAre(Pair("efa", 2)));
  EXPECT_EQ(log.variables.at("NCCL_GIN_TYPE"), "2");
  EXPECT_EQ(log.num_direct_channels, 2);
  EXPECT_EQ(log.num_device_api, 2);
  EXPECT_THAT(log.gin_types, ElementsAre(Pair(2, 2)));
}

TEST(NcclLog, EqualWarningsAreOne) {
  const Findings findings = judge_nccl_log(read("infiniband.log"), false);
  int num_warnings = 0;
  for (const Finding& finding : findings) num_warnings += finding.subject == "warning" ? 1 : 0;
  EXPECT_EQ(num_warnings, 2);
  EXPECT_EQ(worst_of(findings), Verdict::kWarning);
}

TEST(NcclLog, OtherSpellingsOfGin) {
  for (const auto& [text, verdict] :
       {std::pair{"NCCL INFO Device API initialized\nNCCL INFO GIN proxy mode enabled (type 2)\n", Verdict::kOk},
        std::pair{"NCCL INFO Device API initialized\nNCCL INFO GIN proxy mode enabled (type 3)\n", Verdict::kWarning},
        std::pair{"Device API initialized\nDevice API initialized\nGIN proxy mode enabled (type 2)\n",
                  Verdict::kFailure}}) {
    NcclLog log;
    read_nccl_log(text, log);
    EXPECT_EQ(find(judge_nccl_log(log, true), "log", "GIN").verdict, verdict) << text;
  }
}

/// A damaged log may hold anything in place of a name.
TEST(NcclLog, EndlessNamesAreCutAndControlCharactersShown) {
  std::string text;
  for (int i = 0; i < 20; ++i)
    text += "NCCL INFO Using network \x1b[2J" + std::to_string(i) + std::string(1 << 17, 'x') + "\n";
  text += "NCCL WARN \x1b]0;title\x07 0x" + std::string(1 << 20, 'a') + "\n";
  text += "NCCL INFO NET/OFI Selected provider is \r" + std::string(1 << 20, 'y') + "\n";
  NcclLog log;
  read_nccl_log(text, log);
  const std::string shown = render_findings(judge_nccl_log(log, false), false);
  EXPECT_LT(shown.size(), 5000u);
  EXPECT_EQ(shown.find_first_of("\x1b\x07\r"), std::string::npos);
  for (const char* part : {"\\x1b[2J0xxx", "x… (1 line)", "and 12 more", "\\x1b]0;title\\x07", "\\ryyy"})
    EXPECT_THAT(shown, HasSubstr(part));
}

TEST(NcclLog, AFileWithoutNcclIsAFailure) {
  NcclLog log;
  read_nccl_log("iteration 1/20 | lm loss 9.1\n", log);
  EXPECT_EQ(worst_of(judge_nccl_log(log, false)), Verdict::kFailure);
}

}  // namespace
}  // namespace pharos::launch
