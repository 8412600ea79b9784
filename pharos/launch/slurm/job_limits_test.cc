#include "pharos/launch/slurm/job_limits.h"

#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace {

TEST(JobLimits, TimesAreReadAsSbatchReadsThem) {
  const struct {
    const char* text;
    std::int64_t seconds;  // 0: no limit
  } kCases[] = {{"30", 1800},           {"1:30", 120},    {"2:00:00", 7200}, {"1-0", 86'400}, {"1-2:30", 95'400},
                {"1-00:00:01", 86'460}, {"00:01:00", 60}, {"0", 0},          {"infinite", 0}, {"UNLIMITED", 0}};
  for (const auto& [text, seconds] : kCases) EXPECT_EQ(parse_time_limit(text).value_or(0), seconds) << text;
  for (const char* text : {"", "abc", "1:", ":1", "1:2:3:4", "1-", "-5", "1h", "1-2-3", "1 2", "1.5"})
    EXPECT_THROW(parse_time_limit(text), base::UserError) << text;
}

TEST(JobLimits, SignalsAreReadAsSbatchReadsThem) {
  const struct {
    const char* text;
    std::int64_t seconds;
  } kCases[] = {{"TERM@120", 120}, {"B:USR1@30", 30}, {"R:SIGTERM", 60}, {"15@0", 0}, {"usr2", 60}};
  for (const auto& [text, seconds] : kCases) EXPECT_EQ(parse_signal(text), seconds) << text;
  for (const char* text : {"", "@120", "TERM@", "TERM@2m", "TERM@70000", "X:TERM", "NOPE@1", "0", "99", "TERM 120"})
    EXPECT_THROW(parse_signal(text), base::UserError) << text;
}

}  // namespace
}  // namespace pharos::launch::slurm
