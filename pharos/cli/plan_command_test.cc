#include "pharos/cli/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::vector<std::string> kPipeline{"model.num_layers=8", "model.pipeline_model_parallel_size=2",
                                         "train.global_batch_size=32"};

/// What `pharos plan llama_27m …` prints.
std::string printed(const std::vector<std::string>& more, const std::vector<std::string>& overrides = kPipeline) {
  CLI::App app;
  add_plan_command(app);
  const fs::path recipes = fs::path(PHAROS_TEST_DATA).parent_path().parent_path() / "recipes";
  std::vector<std::string> words{"plan", (recipes / "llama_27m.yaml").string()};
  words.insert(words.end(), overrides.begin(), overrides.end());
  words.insert(words.end(), more.begin(), more.end());
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  std::ostringstream output;
  std::streambuf* before = std::cout.rdbuf(output.rdbuf());
  try {
    app.parse(words);
  } catch (...) {
    std::cout.rdbuf(before);
    throw;
  }
  std::cout.rdbuf(before);
  return output.str();
}

TEST(PlanCommand, ShowsTheTimelineAlone) {
  const std::string text = printed({"--schedule", "text"});
  EXPECT_THAT(text, AllOf(StartsWith("1f1b: 2 pipeline ranks"), HasSubstr("rank 1   F0 B0 F1 B1"),
                          HasSubstr("F forward, B backward, . idle"), HasSubstr("Of the bubble: 20.0 % schedule"),
                          HasSubstr("rank 1 is the busiest")));
  EXPECT_THAT(text, Not(HasSubstr("Parameters")));
  EXPECT_THAT(printed({"--schedule=svg"}), AllOf(StartsWith("<?xml"), HasSubstr("</svg>")));
}

TEST(PlanCommand, WritesTheTimelineToAFile) {
  const fs::path file = fs::temp_directory_path() / ("pharos_plan_command_" + std::to_string(::getpid()) + ".svg");
  EXPECT_EQ(printed({"model.pipeline_schedule=zbv", "--schedule=svg", "--schedule-out=" + file.string()}), "");
  EXPECT_THAT(base::read_file(file), AllOf(StartsWith("<?xml"), HasSubstr("zbv")));
  fs::remove(file);
}

TEST(PlanCommand, RefusesWhatItWouldIgnore) {
  EXPECT_THROW(printed({"--schedule-out=x.svg"}), CLI::ParseError);
  EXPECT_THROW(printed({"--schedule=png"}), CLI::ParseError);
  EXPECT_THROW(printed({"--schedule=text", "--json"}), CLI::ParseError);
  EXPECT_THROW(printed({"--schedule=text"}, {}), base::UserError);
  EXPECT_THROW(printed({"--costs=/nowhere"}, {}), base::UserError);
  EXPECT_THROW(printed({"--costs=/nowhere"}), base::UserError);
}

TEST(PlanCommand, SaysWhichMicrobatchesAScheduleCanRun) {
  try {
    printed({"model.pipeline_schedule=dualpipev", "train.global_batch_size=16", "--schedule=text"});
    FAIL();
  } catch (const base::UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("dualpipev"), HasSubstr("4")));
  }
}

TEST(PlanCommand, HasThePipelineInItsJson) {
  EXPECT_EQ(nlohmann::json::parse(printed({"--json"}))["pipeline"]["schedule"], "1f1b");
}

}  // namespace
}  // namespace pharos::cli
