#include "pharos/launch/slurm/job_limits.h"

#include <gtest/gtest.h>

#include <csignal>

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
    int number;
    std::int64_t seconds;
    bool is_of_shell;
  } kCases[] = {{"TERM@120", SIGTERM, 120, false},
                {"B:USR1@30", SIGUSR1, 30, true},
                {"R:SIGTERM", SIGTERM, 60, false},
                {"15@0", SIGTERM, 0, false},
                {"usr2", SIGUSR2, 60, false}};
  for (const auto& [text, number, seconds, is_of_shell] : kCases) {
    const LimitSignal signal = parse_signal(text);
    EXPECT_EQ(signal.number, number) << text;
    EXPECT_EQ(signal.seconds, seconds) << text;
    EXPECT_EQ(signal.is_of_shell, is_of_shell) << text;
  }
  for (const char* text : {"", "@120", "TERM@", "TERM@2m", "TERM@70000", "X:TERM", "NOPE@1", "0", "99", "TERM 120"})
    EXPECT_THROW(parse_signal(text), base::UserError) << text;
}

TEST(JobLimits, ArraysAreReadAsSbatchReadsThem) {
  for (const auto& [text, first] :
       {std::pair("1-4", "1"), {"0", "0"}, {"5,1-9:2", "5"}, {"07-9", "7"}, {"3-3:1,8%2", "3"}, {"1,3,5%2", "1"}})
    EXPECT_EQ(first_of_array(text), first) << text;
  for (const char* text : {"",
                           "a",
                           "-1",
                           "1-",
                           "1,",
                           ",1",
                           "4-1",
                           "1-4:0",
                           "1-4:",
                           "1%0",
                           "1%",
                           "1%2%3",
                           "1-2-3",
                           "1:2",
                           "1 2",
                           "1-x",
                           "%2",
                           "12345678901234567890",
                           "1-12345678901234567890",
                           "1%12345678901234567890"})
    EXPECT_THROW(first_of_array(text), base::UserError) << text;
}

}  // namespace
}  // namespace pharos::launch::slurm
