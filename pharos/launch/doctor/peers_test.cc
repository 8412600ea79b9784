#include "pharos/launch/doctor/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "pharos/launch/doctor/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Finding version(const std::string& what, const std::string& text) {
  return {.check = "versions",
          .subject = what,
          .value = text,
          .verdict = Verdict::kOk,
          .remedy = {},
          .data = {{"version", text}}};
}

std::vector<RankReport> reports_of(const std::string& what, const std::vector<std::string>& versions) {
  std::vector<RankReport> reports;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    reports.push_back({.rank = static_cast<std::int64_t>(i),
                       .host = "n" + std::to_string(i),
                       .device = "cpu",
                       .findings = {version("kernel", "6.8"), version(what, versions[i])}});
  }
  return reports;
}

TEST(Peers, AReportComesBackFromJson) {
  const RankReport report = reports_of("NCCL", {"2.29.3"}).front();
  EXPECT_EQ(to_json(rank_report_from_json(to_json(report))), to_json(report));
}

TEST(Peers, VersionsThatDifferAreNamedWithTheirHosts) {
  const Findings same = judge_same_versions(reports_of("NCCL", {"2.29.3", "2.29.3"}));
  ASSERT_EQ(same.size(), 1);
  EXPECT_EQ(same[0].verdict, Verdict::kOk);
  EXPECT_THAT(same[0].value, HasSubstr("2 nodes"));
  const Findings differ = judge_same_versions(reports_of("NCCL", {"2.29.3", "2.27.5", "2.29.3"}));
  ASSERT_EQ(differ.size(), 1);
  EXPECT_EQ(differ[0].value, "2.27.5 on n1; 2.29.3 on n0, n2");
  EXPECT_EQ(differ[0].verdict, Verdict::kFailure);
  EXPECT_EQ(judge_same_versions(reports_of("NVIDIA driver", {"570.1", "560.2"}))[0].verdict, Verdict::kWarning);
}

TEST(Peers, TheSlowRankIsNamedWithItsHost) {
  const std::vector<std::string> hosts{"n0", "n0", "n1", "n1"};
  const Finding good =
      judge_speeds({.check = "outliers", .subject = "gemm", .unit = "GFLOP/s", .values = {100, 101, 99, 100}}, hosts);
  EXPECT_EQ(good.verdict, Verdict::kOk);
  const Finding bad =
      judge_speeds({.check = "outliers", .subject = "gemm", .unit = "GFLOP/s", .values = {100, 101, 40, 100}}, hosts);
  EXPECT_EQ(bad.verdict, Verdict::kWarning);
  EXPECT_THAT(bad.value, HasSubstr("rank 2 on n1: 40 GFLOP/s"));
  EXPECT_THAT(bad.value, Not(HasSubstr("rank 3")));
  EXPECT_EQ(bad.data["slow_ranks"], nlohmann::json({2}));
}

TEST(Peers, SpeedsNeedAMeasurementOfEveryRank) {
  std::vector<RankReport> reports = reports_of("NCCL", {"1", "1"});
  const Finding gemm{
      .check = "gemm", .subject = "cpu", .value = {}, .verdict = Verdict::kOk, .remedy = {}, .data = {{"median", 7.0}}};
  reports[0].findings.push_back(gemm);
  EXPECT_TRUE(speeds_of(reports, "gemm").empty());
  reports[1].findings.push_back(gemm);
  EXPECT_EQ(speeds_of(reports, "gemm"), (std::vector<double>{7, 7}));
}

TEST(Peers, TheOffsetOfAClockComesFromTheFastestAnswer) {
  // The other's clock is 1000 ahead; the way there takes 10, back 30 (then 500).
  const ClockOffset offset = estimate_clock_offset({{.sent_ns = 0, .answered_ns = 1010, .received_ns = 510},
                                                    {.sent_ns = 600, .answered_ns = 1610, .received_ns = 640}});
  EXPECT_EQ(offset.error_ns, 20);
  EXPECT_EQ(offset.offset_ns, 990);
  EXPECT_LE(std::abs(offset.offset_ns - 1000), offset.error_ns);
  constexpr std::int64_t kMs = 1'000'000;
  EXPECT_EQ(judge_clock_offset("n1", {.offset_ns = kMs / 2, .error_ns = 0}).verdict, Verdict::kOk);
  EXPECT_EQ(judge_clock_offset("n1", {.offset_ns = -20 * kMs, .error_ns = kMs}).verdict, Verdict::kNote);
  EXPECT_EQ(judge_clock_offset("n1", {.offset_ns = -200 * kMs, .error_ns = kMs}).verdict, Verdict::kWarning);
  EXPECT_EQ(judge_clock_offset("n1", {.offset_ns = 200 * kMs, .error_ns = 200 * kMs}).verdict, Verdict::kOk);
}

TEST(Peers, EachPairOfRanksMeetsOnce) {
  for (std::int64_t size = 1; size <= 9; ++size) {
    std::set<std::pair<std::int64_t, std::int64_t>> met;
    for (std::int64_t round = 0; round < num_rounds(size); ++round) {
      for (std::int64_t rank = 0; rank < size; ++rank) {
        const auto partner = partner_of(rank, size, round);
        if (!partner) continue;
        ASSERT_NE(*partner, rank);
        ASSERT_EQ(partner_of(*partner, size, round), rank) << size << " ranks, round " << round;
        if (rank < *partner) {
          EXPECT_TRUE(met.insert({rank, *partner}).second);
        }
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(met.size()), size * (size - 1) / 2) << size;
  }
}

}  // namespace
}  // namespace pharos::launch
