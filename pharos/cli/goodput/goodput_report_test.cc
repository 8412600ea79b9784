#include "pharos/cli/goodput/goodput_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pharos::cli {
namespace {

using testing::HasSubstr;

RunGoodput run() {
  train::AttemptRecord first{.number = 1, .start = 1000, .run_id = "r", .job_id = "7", .begin = 1010, .first_step = 0};
  first.end = 1100;
  first.cause = "lost";
  first.last_step = 8;
  first.last_saved_step = 6;
  first.seconds = {.start_up = 10, .steps = 80};
  train::AttemptRecord second{.number = 2, .start = 1200, .begin = 1210, .first_step = 6};
  second.last_step = 10;
  second.end = 1250;
  second.seconds = {.start_up = 10, .steps = 40};
  return {"runs/a", train::compute_goodput({.attempts = {first, second}, .num_damaged_lines = 2})};
}

TEST(GoodputReport, TableSaysWhereTheTimeWent) {
  const std::string text = render_goodput({run()});
  for (const char* part :
       {"runs/a · run r · 2 attempts · 10 of 12 steps useful", "2 damaged lines of attempts.jsonl", "6 of 8", "lost",
        "0 … 8", "running, or ended without a word", "40.0 %", "100.0 %", "goodput 40.0 % of the whole, 66.7 %"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("all 1 runs")));
  EXPECT_THAT(render_goodput({run(), run()}), HasSubstr("all 2 runs · 20 of 24 steps useful"));
}

TEST(GoodputReport, LostNodesAreBelowTheAttempts) {
  RunGoodput lost = run();
  lost.report.node_failures = {"slurm-7.log: srun: error: Node failure on n2"};
  EXPECT_THAT(render_goodput({lost}), HasSubstr("\nslurm-7.log: srun: error: Node failure on n2\n\n"));
  EXPECT_EQ(goodput_json({lost})["runs"][0]["node_failures"].size(), 1u);
}

/// Records and logs are written by others: what they hold must not reach the terminal as it is.
TEST(GoodputReport, ControlCharactersAreShown) {
  constexpr const char* kForged = "\x1b[2J\nattempt 9: all is well\xC2\x9B";
  RunGoodput run = cli::run();
  run.folder = kForged;
  run.report.run_id = kForged;
  run.report.node_failures = {kForged};
  train::AttemptRecord& record = run.report.attempts[0].record;
  record.cause = record.job_id = record.message = kForged;
  const std::string text = render_goodput({run});
  EXPECT_EQ(text.find_first_of("\x1b\x9b"), std::string::npos);
  EXPECT_THAT(text, testing::Not(HasSubstr("\nattempt 9")));
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find("\\x1b[2J\\nattempt 9: all is well\\x9b", at)) != std::string::npos; ++at)
    ++count;
  EXPECT_EQ(count, 6u) << text;
  EXPECT_EQ(goodput_json({run})["runs"][0]["run_id"], kForged);
}

TEST(GoodputReport, JsonHasTheSame) {
  const nlohmann::json json = goodput_json({run(), run()});
  ASSERT_EQ(json["runs"].size(), 2u);
  const nlohmann::json& attempts = json["runs"][0]["attempts"];
  EXPECT_EQ(attempts[0]["useful_steps"], 6);
  EXPECT_EQ(attempts[0]["exit_code"], nullptr);
  EXPECT_EQ(attempts[1]["is_open"], true);
  EXPECT_EQ(attempts[1]["seconds"]["waiting"], 100);
  EXPECT_EQ(json["totals"]["seconds"]["wall"], 500);
  EXPECT_EQ(json["totals"]["goodput"], 0.4);
}

}  // namespace
}  // namespace pharos::cli
