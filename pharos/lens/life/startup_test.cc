#include "pharos/lens/life/startup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <regex>
#include <sstream>

#include "pharos/base/clock.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

StartupRecord example_record() {
  StartupRecord record(1000 * kMillisecond);
  record.finish_phase("libraries", 1250 * kMillisecond + 400'000);
  record.finish_phase("config", 1253 * kMillisecond);
  record.finish_phase("data", 1300 * kMillisecond);
  record.finish_phase("model", 1420 * kMillisecond);
  record.finish_phase("first step", 2000 * kMillisecond);
  return record;
}

TEST(Startup, PartsAddUpToTheWhole) {
  const StartupRecord record = example_record();
  std::int64_t sum = 0;
  std::int64_t next = record.start_ns();
  for (const StartupRecord::Phase& phase : record.phases()) {
    EXPECT_EQ(phase.start_ns, next) << phase.name;
    next += phase.duration_ns;
    sum += phase.duration_ns;
  }
  EXPECT_EQ(sum, record.total_ns());
  EXPECT_EQ(sum, 1000 * kMillisecond);
}

TEST(Startup, TimeNeverRunsBackwards) {
  StartupRecord record(100);
  record.finish_phase("a", 200);
  record.finish_phase("b", 150);
  EXPECT_EQ(record.phases()[1].duration_ns, 0);
  EXPECT_EQ(record.total_ns(), 100);
}

TEST(Startup, BeginsWithTheProcess) {
  StartupRecord record;
  record.finish_phase("libraries");
  EXPECT_GE(record.total_ns(), 0);
  EXPECT_LE(record.start_ns(), base::monotonic_ns());
  EXPECT_LT(record.total_ns(), 600'000 * kMillisecond);
}

TEST(Startup, WaterfallIsAlignedAndItsNumbersAddUp) {
  std::istringstream text(example_record().render());
  const std::regex form(R"(  (.{10})  ([ #]{40})  +(\d+) ms  +(\d+) %)");
  std::int64_t milliseconds = 0;
  std::int64_t percent = 0;
  std::vector<std::string> bars;
  std::string line;
  while (std::getline(text, line)) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, form)) << line;
    bars.push_back(match[2]);
    if (match[1] == "total     ") {
      EXPECT_EQ(milliseconds, std::stoll(match[3]));
      EXPECT_EQ(percent, 100);
      EXPECT_EQ(match[4], "100");
      continue;
    }
    milliseconds += std::stoll(match[3]);
    percent += std::stoll(match[4]);
  }
  ASSERT_EQ(bars.size(), 6u);
  EXPECT_EQ(milliseconds, 1000);
  EXPECT_EQ(bars[0].find_first_not_of(' '), 0u);  // 0 … 250 ms of 1000 ms, 40 columns
  EXPECT_EQ(std::count(bars[0].begin(), bars[0].end(), '#'), 10);
  EXPECT_EQ(std::count(bars[1].begin(), bars[1].end(), '#'), 1);  // a short phase is still seen
  EXPECT_EQ(bars[4].find('#'), 17u);                              // begins where the model phase ended
  EXPECT_EQ(bars[4].find_last_of('#'), 39u);
}

TEST(Startup, EmptyRecordRenders) { EXPECT_THAT(StartupRecord(5).render(), testing::HasSubstr("total")); }

TEST(Startup, SpansOfTheStartAreBackDatedChildrenOfOneRoot) {
  MemoryTelemetry memory;
  PHAROS_SPAN(ambient, Group::kStep, "test.ambient");
  const StartupRecord record = example_record();
  ManagedSpan startup = open_startup_span(record, "gpt");
  EXPECT_EQ(current_context(), startup.context());
  startup.end();
  const SpanData root = memory.span("megatron.startup");
  EXPECT_EQ(root.parent_span_id, 0u);
  EXPECT_EQ(root.start_ns, record.start_ns());
  EXPECT_EQ(attribute(root, "megatron.model_type"), StoredValue(std::string("gpt")));
  const SpanData imports = memory.span("megatron.startup.imports");
  EXPECT_EQ(imports.parent_span_id, root.context.span_id);
  EXPECT_EQ(imports.end_ns - imports.start_ns, 250 * kMillisecond + 400'000);
  EXPECT_EQ(attribute(imports, "is_goodput_span"), StoredValue(true));
  EXPECT_EQ(memory.span("megatron.startup.arg_parse").start_ns, imports.end_ns);
  EXPECT_EQ(memory.span("megatron.startup.in_job_setup").start_ns, memory.span("megatron.startup.arg_parse").end_ns);
  EXPECT_EQ(memory.spans().size(), 6u);  // with .first_step; data and model are spans of their own
}

TEST(Startup, LaunchStampsThatFitTogetherAreRecorded) {
  constexpr std::int64_t kTenth = 100 * kMillisecond;
  const StartupRecord record = example_record();
  struct Case {
    LaunchStamps stamps;  // relative to the start of the process
    bool has_pre_startup, has_launch;
  };
  const Case kCases[] = {
      {{-9 * kTenth, -5 * kTenth, -2 * kTenth}, true, true},
      {{-9 * kTenth, -5 * kTenth, std::nullopt}, true, false},
      {{std::nullopt, -5 * kTenth, -2 * kTenth}, false, true},
      {{-4 * kTenth, -5 * kTenth, -6 * kTenth}, false, false},  // not in this order
      {{std::nullopt, -5 * kTenth, kTenth}, false, false},      // launched after it had begun
      {{-9 * kTenth, std::nullopt, -2 * kTenth}, false, false},
  };
  for (const Case& item : kCases) {
    MemoryTelemetry memory;
    LaunchStamps stamps = item.stamps;
    for (auto* stamp : {&stamps.scheduler_start_ns, &stamps.script_start_ns, &stamps.before_launch_ns}) {
      if (*stamp) **stamp += record.start_ns();
    }
    open_startup_span(record, "gpt", stamps).end();
    const SpanData root = memory.span("megatron.startup");
    EXPECT_EQ(root.start_ns, item.has_launch ? *stamps.script_start_ns : record.start_ns());
    EXPECT_EQ(memory.spans().size(), 6u + item.has_pre_startup + 2 * item.has_launch);
    if (item.has_pre_startup) {
      EXPECT_EQ(memory.span("pre_startup").parent_span_id, 0u);
    }
    if (item.has_launch) {
      EXPECT_EQ(memory.span("megatron.startup.container_load").end_ns, record.start_ns());
    }
  }
}

TEST(Startup, LaunchStampsComeFromTheEnvironment) {
  const std::string now = std::to_string(base::wall_ns() / 1'000'000'000);
  const MapEnvironment plain({{"SLURM_JOB_START_TIME", now},
                              {"LENS_LAUNCH_SCRIPT_START_TIME", now + ".5"},
                              {"LENS_LAUNCH_SCRIPT_PRESRUN_TIME", "soon"}});
  const LaunchStamps stamps = read_launch_stamps(plain);
  ASSERT_TRUE(stamps.scheduler_start_ns && stamps.script_start_ns);
  EXPECT_NEAR(static_cast<double>(*stamps.script_start_ns - *stamps.scheduler_start_ns), 5e8, 1e6);
  EXPECT_FALSE(stamps.before_launch_ns);
  const MapEnvironment restarted({{"SLURM_JOB_START_TIME", now},
                                  {"LENS_LAUNCH_SCRIPT_START_TIME", "1"},
                                  {"NVRX_LAUNCH_TIME", now},
                                  {"NVRX_CYCLE", "2"}});
  const LaunchStamps again = read_launch_stamps(restarted);
  EXPECT_FALSE(again.scheduler_start_ns);
  EXPECT_NEAR(static_cast<double>(*again.script_start_ns), static_cast<double>(*stamps.scheduler_start_ns), 1e6);
}

TEST(IntervalSpans, BlocksAreRootsLinkedToTheOneBefore) {
  MemoryTelemetry memory;
  const SpanContext startup{7, 8, 9};
  {
    IntervalSpans intervals("megatron.train", 3, startup);
    for (int pass = 0; pass < 7; ++pass) {
      intervals.next_pass();
      PHAROS_SPAN(step, Group::kStep, "test.step");
    }
  }
  std::vector<SpanData> blocks;
  std::vector<SpanData> steps;
  for (const SpanData& span : memory.spans()) (span.name == "test.step" ? steps : blocks).push_back(span);
  ASSERT_EQ(blocks.size(), 3u);
  SpanContext previous = startup;
  for (const SpanData& block : blocks) {
    EXPECT_EQ(block.parent_span_id, 0u);
    EXPECT_EQ(block.links, std::vector<SpanContext>{previous});
    previous = block.context;
  }
  for (std::size_t pass = 0; pass < 7; ++pass) {
    EXPECT_EQ(steps[pass].parent_span_id, blocks[pass / 3].context.span_id) << pass;
  }
  EXPECT_FALSE(current_context());
}

TEST(IntervalSpans, WithoutAnIntervalNothingIsRecorded) {
  MemoryTelemetry memory;
  IntervalSpans intervals("megatron.train", 0);
  for (int pass = 0; pass < 3; ++pass) intervals.next_pass();
  intervals.finish();
  EXPECT_TRUE(memory.spans().empty());
}

}  // namespace
}  // namespace pharos::lens
