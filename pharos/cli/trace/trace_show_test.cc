// What trace show prints of the rings that lens really writes, and what it says to everything else.
#include "pharos/cli/trace/trace_show.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/test_support.h"

namespace pharos::cli {
namespace {

using lens::Group;
using testing::HasSubstr;

/// A process that leaves the ring of `rank` behind: three steps of 10 ms, 1 ms of each in the optimizer. It ends in
/// order, or inside a fourth step without a word, as kill -9 does.
void record_run(const std::filesystem::path& folder, int rank, bool is_killed) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    lens::Telemetry& telemetry =
        lens::Telemetry::init({.groups = lens::kEveryGroup, .rank = rank, .world_size = 2, .run_folder = folder});
    lens::ManagedSpan train = lens::start_span(Group::kJob, "megatron.train", {.start_ns = 1000000});
    for (std::int64_t i = 0; i < 3; ++i) {
      const std::int64_t start_ns = 1000000 + i * 20000000;
      const lens::SpanContext step =
          lens::record_span("megatron.train.iteration", Group::kStep, start_ns, start_ns + 10000000, train.context());
      lens::record_span("megatron.train.iteration.optimizer", Group::kOptimizer, start_ns, start_ns + 1000000, step);
    }
    if (is_killed) {
      PHAROS_SPAN(step, Group::kStep, "megatron.train.iteration", {"megatron.iteration", 4});
      _exit(0);
    }
    train.end(101000000);
    telemetry.shutdown();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
}

std::string show(const TraceShowOptions& options) {
  std::ostringstream output;
  show_trace(options, output);
  return output.str();
}

std::string refusal(const TraceShowOptions& options) {
  try {
    show(options);
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TraceShow, TablesOfARunThatEnded) {
  const lens::TemporaryFolder folder;
  record_run(folder.path(), 0, false);
  const std::string text = show({.path = folder.path()});
  EXPECT_THAT(text, HasSubstr("Rank 0 of 2: process "));
  EXPECT_THAT(text, HasSubstr(" left in order\n  7 spans ended, 0 open, 0 overwritten"));
  EXPECT_THAT(text, HasSubstr("\n  megatron.train                              1     0   100 ms   100 ms          -\n"
                              "    megatron.train.iteration                  3     0  30.0 ms  10.0 ms     30.0 %\n"
                              "      megatron.train.iteration.optimizer      3     0  3.00 ms  1.00 ms     10.0 %\n"));
  EXPECT_THAT(text,
              HasSubstr("  megatron.train.iteration.optimizer      3  3.00 ms  1.00 ms  1.00 ms  1.00 ms   10.0 %"));
  EXPECT_THAT(text, testing::Not(HasSubstr("Open spans")));
}

TEST(TraceShow, SaysWhereAKilledProcessWas) {
  const lens::TemporaryFolder folder;
  record_run(folder.path(), 0, true);
  const std::string text = show({.path = folder.path()});
  EXPECT_THAT(text, HasSubstr("was killed, or runs on another machine"));
  EXPECT_THAT(text, HasSubstr("megatron.train > megatron.train.iteration  {\"megatron.iteration\":4}\n"));
}

TEST(TraceShow, KnowsThatTheProcessRuns) {
  const lens::TemporaryFolder folder;
  lens::TelemetryOptions options;
  options.run_folder = folder.path();
  const lens::MemoryTelemetry telemetry(lens::kEveryGroup, options);
  EXPECT_THAT(show({.path = folder.path()}), HasSubstr("is running\n"));
  EXPECT_THAT(show({.path = folder.path()}), HasSubstr("The ring holds no span."));
  EXPECT_THAT(show({.path = folder.path(), .is_json = true}), HasSubstr("\"first_time\":null"));
}

TEST(TraceShow, JsonOfSeveralRanks) {
  const lens::TemporaryFolder folder;
  record_run(folder.path(), 0, false);
  record_run(folder.path(), 10, true);
  record_run(folder.path(), 2, false);
  const nlohmann::json all = nlohmann::json::parse(show({.path = folder.path(), .is_json = true}));
  ASSERT_EQ(all["ranks"].size(), 3u);
  EXPECT_EQ(all["ranks"][1]["resource"]["dl.rank"], 2);
  EXPECT_EQ(all["ranks"][2]["resource"]["dl.rank"], 10);
  const nlohmann::json& killed = all["ranks"][2];
  EXPECT_EQ(killed["process"], "killed_or_elsewhere");
  EXPECT_EQ(killed["num_open"], 2);
  EXPECT_EQ(killed["open"][1]["path"], nlohmann::json({"megatron.train", "megatron.train.iteration"}));
  EXPECT_EQ(killed["open"][1]["attributes"]["megatron.iteration"], 4);
  const nlohmann::json& ended = all["ranks"][0];
  EXPECT_EQ(ended["num_overwritten"], 0);
  EXPECT_EQ(ended["range_ns"], 100000000);
  EXPECT_EQ(ended["tree"].size(), 3u);
  EXPECT_EQ(ended["tree"][0]["parent"], nullptr);
  EXPECT_EQ(ended["tree"][2]["parent"], 1);
  EXPECT_DOUBLE_EQ(ended["tree"][1]["share_of_parent"].get<double>(), 0.3);
  EXPECT_EQ(ended["totals"][0]["name"], "megatron.train");
  EXPECT_DOUBLE_EQ(ended["totals"][2]["share_of_step"].get<double>(), 0.1);
  EXPECT_EQ(ended["totals"][2]["p99_ns"], 1000000);

  const nlohmann::json one =
      nlohmann::json::parse(show({.path = folder.path(), .rank = 10, .is_json = true, .top = 1, .depth = 1}));
  ASSERT_EQ(one["ranks"].size(), 1u);
  EXPECT_EQ(one["ranks"][0]["tree"].size(), 1u);
  EXPECT_EQ(one["ranks"][0]["totals"].size(), 1u);
}

TEST(TraceShow, SaysHowManyNamesAreLeftOut) {
  const lens::TemporaryFolder folder;
  record_run(folder.path(), 0, false);
  EXPECT_THAT(show({.path = folder.path(), .top = 1}), HasSubstr("… 2 more names; --top 0 shows all"));
  EXPECT_THAT(show({.path = folder.path(), .top = 0}), testing::Not(HasSubstr("more names")));
}

TEST(TraceShow, RefusesWhatIsNoRun) {
  const lens::TemporaryFolder folder;
  const std::filesystem::path& path = folder.path();
  EXPECT_THAT(refusal({.path = path / "absent"}), HasSubstr("does not exist"));
  EXPECT_THAT(refusal({.path = path}), HasSubstr("is not a run folder"));
  EXPECT_THAT(refusal({.path = path}), HasSubstr("metrics.jsonl"));
  std::ofstream(path / "run.yaml") << "model: {}\n";
  EXPECT_THAT(refusal({.path = path}), HasSubstr("telemetry.ring=true"));
}

TEST(TraceShow, RefusesFilesThatAreNoWholeRing) {
  const lens::TemporaryFolder folder;
  record_run(folder.path(), 0, false);
  const std::filesystem::path ring = folder.path() / "trace" / "rank_0.ring";
  const std::string whole = base::read_file(ring);
  const auto refusal_of = [&](const std::string& content) {
    std::ofstream(ring, std::ios::trunc | std::ios::binary) << content;
    return refusal({.path = folder.path()});
  };
  EXPECT_THAT(refusal_of(""), HasSubstr("not a trace ring"));
  EXPECT_THAT(refusal_of(std::string(100000, 'x')), HasSubstr("not a trace ring"));
  EXPECT_THAT(refusal_of(whole.substr(0, 5000)), HasSubstr("not a trace ring"));
  EXPECT_THAT(refusal_of(whole.substr(0, whole.size() - 4096)), HasSubstr("cut off"));
  EXPECT_EQ(refusal_of(whole), "accepted");
  EXPECT_THAT(refusal({.path = folder.path(), .rank = 3}), HasSubstr("Ranks that have one: 0."));
  EXPECT_THAT(refusal({.path = ring, .rank = 0}), HasSubstr("is a file"));
}

}  // namespace
}  // namespace pharos::cli
