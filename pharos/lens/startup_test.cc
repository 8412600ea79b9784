#include "pharos/lens/startup.h"

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
  EXPECT_EQ(memory.spans().size(), 4u);  // with .first_step; data and model are spans of their own
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
