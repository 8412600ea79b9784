// Findings, calls with a time limit, and the running of checks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <stdexcept>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/launch/doctor/bounded.h"
#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/finding.h"
#include "pharos/launch/doctor/statistics.h"
#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using End = BoundedResult::End;

constexpr std::int64_t kSecondNs = 1'000'000'000;

const Findings kFindings = {
    {.check = "gpu",
     .subject = "0",
     .value = "fine",
     .verdict = Verdict::kOk,
     .remedy = {},
     .data = {{"a", 1}},
     .host = "n1"},
    {.check = "disk", .subject = {}, .value = "full", .verdict = Verdict::kFailure, .remedy = "make room"},
};

TEST(Finding, TheWorstVerdictCounts) {
  EXPECT_EQ(worst_of({}), Verdict::kOk);
  EXPECT_EQ(worst_of({kFindings[0]}), Verdict::kOk);
  EXPECT_EQ(worst_of(kFindings), Verdict::kFailure);
}

TEST(Finding, JsonGivesTheSameBack) {
  const Findings read = findings_from_json(nlohmann::json::parse(to_json(kFindings).dump()));
  EXPECT_EQ(to_json(read), to_json(kFindings));
}

TEST(Finding, TheTableHasARemedyBelowItsLineAndColorOnlyOnATerminal) {
  EXPECT_EQ(render_findings(kFindings, false),
            "check  verdict  value\n"
            "gpu 0  ok       fine\n"
            "disk   failure  full\n"
            "                → make room\n");
  EXPECT_THAT(render_findings(kFindings, true), HasSubstr("\033[1;31mfailure\033[0m"));
}

BoundedResult bounded(const std::function<nlohmann::json()>& call, std::int64_t limit_ns) {
  return BoundedCall(call).wait(base::monotonic_ns() + limit_ns);
}

TEST(BoundedCall, GivesBackWhatTheCallReturnsHoweverLong) {
  const std::string text(300'000, 'x');
  const BoundedResult result = bounded([&] { return nlohmann::json(text); }, 60 * kSecondNs);
  EXPECT_EQ(result.end, End::kDone);
  EXPECT_EQ(result.value, text);
}

TEST(BoundedCall, SaysWhatWasThrown) {
  const BoundedResult result = bounded([]() -> nlohmann::json { throw std::runtime_error("no disk"); }, 60 * kSecondNs);
  EXPECT_EQ(result.end, End::kThrew);
  EXPECT_EQ(result.text, "no disk");
}

TEST(BoundedCall, SaysWhichSignalEndedIt) {
  const BoundedResult result = bounded(
      []() -> nlohmann::json {
        ::raise(SIGKILL);
        return {};
      },
      60 * kSecondNs);
  EXPECT_EQ(result.end, End::kDied);
  EXPECT_THAT(result.text, HasSubstr("Killed"));
}

TEST(BoundedCall, DoesNotWaitForACallThatHangs) {
  const auto hang = []() -> nlohmann::json {
    ::raise(SIGSTOP);
    return {};
  };
  EXPECT_EQ(bounded(hang, kSecondNs / 20).end, End::kTimedOut);
}

TEST(Checks, ACheckThatHangsOrThrowsIsAVerdict) {
  testing::RecordedNode recorded;
  recorded.node().benchmarks.gemm = []() -> std::vector<Measurement> {
    ::pause();
    return {};
  };
  recorded.node().benchmarks.bandwidth = []() -> std::vector<Measurement> {
    throw std::runtime_error("out of memory");
  };
  const std::int64_t deadline_ns = base::monotonic_ns() + 120 * kSecondNs;
  const Findings hanging =
      run_node_checks(recorded.node(), {"gemm"}, {.deadline_ns = deadline_ns, .check_limit_ns = kSecondNs / 20});
  EXPECT_THAT(testing::find(hanging, "gemm").value, HasSubstr("timed out"));
  EXPECT_EQ(testing::find(hanging, "gemm").verdict, Verdict::kFailure);
  EXPECT_EQ(hanging.front().host, "n1");
  const Findings others = run_node_checks(recorded.node(), {"bandwidth", "variables"},
                                          {.deadline_ns = deadline_ns, .check_limit_ns = 60 * kSecondNs});
  EXPECT_THAT(testing::find(others, "bandwidth").value, HasSubstr("out of memory"));
  EXPECT_EQ(testing::find(others, "variables").verdict, Verdict::kOk);
}

TEST(Checks, AnUnknownNameIsRefusedWithItsNearest) {
  try {
    require_known_checks({"gpu", "netwrk"});
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("network"));
  }
}

TEST(Statistics, NamesWhatIsSlowBeyondDoubt) {
  EXPECT_THAT(find_slow({}), IsEmpty());
  EXPECT_THAT(find_slow({1}), IsEmpty());
  EXPECT_THAT(find_slow({100, 80}), IsEmpty());
  EXPECT_THAT(find_slow({100, 70}), ElementsAre(1));
  EXPECT_THAT(find_slow({100, 101, 99, 60}), ElementsAre(3));
  EXPECT_THAT(find_slow({100, 101, 99, 95}), IsEmpty());           // within 10 %
  EXPECT_THAT(find_slow({100, 140, 60, 120, 80, 50}), IsEmpty());  // they all differ
  EXPECT_THAT(find_slow({50, 100, 100, 100, 101, 51}), ElementsAre(0, 5));
}

TEST(Statistics, MedianAndSpread) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(spread_of({2}), 0);
  EXPECT_DOUBLE_EQ(spread_of({1, 2, 3}), 1);
}

}  // namespace
}  // namespace pharos::launch
