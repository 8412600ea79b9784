// The ring file: what survives kill -9, wrapping, damage, two threads at once.
#include "pharos/lens/record/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/record/ring_format.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

constexpr const char* kFolderVariable = "LENS_RING_TEST_FOLDER";

std::pair<std::string, StoredValue> entry(const char* key, StoredValue value) { return {key, std::move(value)}; }

/// The victim: runs in a process of its own, started by the test below.
TEST(RingVictim, DISABLED_RecordsUntilKilled) {
  const char* folder = std::getenv(kFolderVariable);
  ASSERT_NE(folder, nullptr);
  TelemetryOptions options;
  options.groups = kEveryGroup;
  options.run_folder = folder;
  options.service_name = "victim";
  options.rank = 3;
  options.world_size = 8;
  Telemetry::init(options);
  PHAROS_SPAN(run, Group::kJob, "test.run", {kGoodput, true}, {"megatron.iteration", 17});
  for (int i = 0; i < 100; ++i) {
    PHAROS_SPAN(step, Group::kStep, "test.step", {"i", i});
  }
  ManagedSpan open = managed_span(Group::kStep, "test.open", {"phase", "backward"});
  std::thread([] { PHAROS_SPAN(span, Group::kLayer, "test.thread"); }).join();
  kill(getpid(), SIGKILL);
}

TEST(Ring, SurvivesKillWithTheSpansThatWereOpen) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    setenv(kFolderVariable, folder.path().c_str(), 1);
    execl("/proc/self/exe", "lens_test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
          "--gtest_filter=RingVictim.*", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;

  const RingContents contents = read_ring(folder.path() / "trace" / "rank_3.ring");
  EXPECT_FALSE(contents.is_shut_down);
  EXPECT_EQ(contents.num_overwritten, 0u);
  ASSERT_EQ(contents.spans.size(), 101u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(contents.spans[static_cast<std::size_t>(i)].name, "test.step");
    EXPECT_EQ(attribute(contents.spans[static_cast<std::size_t>(i)], "i"), StoredValue(std::int64_t{i}));
  }
  EXPECT_EQ(contents.spans[100].name, "test.thread");
  EXPECT_EQ(contents.spans[100].thread_index, 1u);
  ASSERT_EQ(contents.open_spans.size(), 2u);
  EXPECT_EQ(contents.open_spans[0].name, "test.run");
  EXPECT_EQ(attribute(contents.open_spans[0], "megatron.iteration"), StoredValue(std::int64_t{17}));
  EXPECT_EQ(attribute(contents.open_spans[0], "nemo.span.truncated"), StoredValue(true));
  EXPECT_EQ(contents.open_spans[1].name, "test.open");
  EXPECT_EQ(attribute(contents.open_spans[1], "phase"), StoredValue(std::string("backward")));
  EXPECT_EQ(contents.open_spans[1].end_ns, 0);
  EXPECT_EQ(contents.open_spans[1].parent_span_id, contents.open_spans[0].context.span_id);
  EXPECT_THAT(contents.resource.attributes, testing::Contains(entry("dl.rank", std::int64_t{3})));
  EXPECT_THAT(contents.resource.attributes, testing::Contains(entry("service.name", std::string("victim"))));
  EXPECT_THAT(contents.resource.attributes, testing::Contains(entry("process.pid", std::int64_t{child})));
}

TelemetryOptions small_ring(const TemporaryFolder& folder) {
  TelemetryOptions options;
  options.run_folder = folder.path();
  options.ring_records = 64;
  options.pipeline.local_interval = std::chrono::hours(1);
  return options;
}

TEST(Ring, KeepsTheNewestAndCountsTheOverwritten) {
  const TemporaryFolder folder;
  MemoryTelemetry memory(kEveryGroup, small_ring(folder));
  constexpr int kSpans = 20000;
  for (int i = 0; i < kSpans; ++i) {
    PHAROS_SPAN(span, Group::kStep, "test.step", {"i", i});
  }
  const RingContents contents = read_ring(memory.telemetry().ring_path());
  ASSERT_EQ(contents.spans.size(), 64u);
  EXPECT_EQ(contents.num_overwritten, kSpans - 64u);
  EXPECT_EQ(attribute(contents.spans.front(), "i"), StoredValue(std::int64_t{kSpans - 64}));
  EXPECT_EQ(attribute(contents.spans.back(), "i"), StoredValue(std::int64_t{kSpans - 1}));
  // Every span was either exported or counted as overwritten.
  const std::size_t exported = memory.spans().size();
  const TelemetryCounts counts = memory.telemetry().counts();
  EXPECT_EQ(counts.recorded, static_cast<std::uint64_t>(kSpans));
  EXPECT_EQ(counts.exported, exported);
  EXPECT_EQ(counts.exported + counts.overwritten, static_cast<std::uint64_t>(kSpans));
}

TEST(Ring, ManyThreadsAtOnceAndAReaderBeside) {
  const TemporaryFolder folder;
  TelemetryOptions options = small_ring(folder);
  options.ring_records = 16384;
  options.pipeline.local_interval = std::chrono::milliseconds(10);
  MemoryTelemetry memory(kEveryGroup, options);
  constexpr int kThreads = 4;
  constexpr int kSpans = 2000;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads[static_cast<std::size_t>(t)] = std::thread([t, &running] {
      for (int i = 0; i < kSpans; ++i) {
        PHAROS_SPAN(outer, Group::kStep, "test.outer", {"thread", t}, {"i", i});
        PHAROS_SPAN(inner, Group::kLayer, "test.inner");
        inner.set("i", i);
      }
      --running;
    });
  }
  while (running > 0) {
    const RingContents contents = read_ring(memory.telemetry().ring_path());
    for (const SpanData& span : contents.spans) ASSERT_LE(span.start_ns, span.end_ns);
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<SpanData> spans = memory.spans();
  EXPECT_EQ(memory.telemetry().counts().overwritten, 0u);
  ASSERT_EQ(spans.size(), 2u * kThreads * kSpans);
  std::vector<std::uint64_t> ids;
  ids.reserve(spans.size());
  for (const SpanData& span : spans) ids.push_back(span.context.span_id);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST(Ring, ReusesThePlacesOfEndedThreads) {
  const TemporaryFolder folder;
  TelemetryOptions options = small_ring(folder);
  options.ring_records = 256;
  MemoryTelemetry memory(kEveryGroup, options);
  for (int i = 0; i < 100; ++i) {
    std::thread([] { PHAROS_SPAN(span, Group::kStep, "test.step"); }).join();
  }
  EXPECT_EQ(memory.spans().size(), 100u);
  EXPECT_EQ(memory.telemetry().counts().refused, 0u);
  EXPECT_LT(std::filesystem::file_size(memory.telemetry().ring_path()), 1u << 20);
}

TEST(Ring, KeepsTheRingOfTheIncarnationBefore) {
  const TemporaryFolder folder;
  for (const char* name : {"test.before", "test.after"}) {
    MemoryTelemetry memory(kEveryGroup, small_ring(folder));
    managed_span(Group::kStep, name).end();
  }
  const auto trace = folder.path() / "trace";
  EXPECT_EQ(read_ring(trace / "rank_0.previous.ring").spans.at(0).name, "test.before");
  const RingContents after = read_ring(trace / "rank_0.ring");
  EXPECT_EQ(after.spans.at(0).name, "test.after");
  EXPECT_TRUE(after.is_shut_down);
}

TEST(Ring, ForeignAndDamagedFilesAreErrorsOrLoseOnlyTheDamage) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    MemoryTelemetry memory(kEveryGroup, small_ring(folder));
    path = memory.telemetry().ring_path();
    for (int i = 0; i < 10; ++i) managed_span(Group::kStep, "test.step", {"key", "value"}).end();
  }
  const std::string whole = base::read_file(path);
  const std::filesystem::path damaged = folder.path() / "damaged.ring";
  const auto read_damaged = [&damaged](const std::string& bytes) {
    std::ofstream(damaged, std::ios::binary) << bytes;
    return read_ring(damaged);
  };
  EXPECT_THROW(read_damaged(""), base::UserError);
  EXPECT_THROW(read_damaged(whole.substr(0, 100)), base::UserError);
  EXPECT_THROW(read_damaged("x" + whole.substr(1)), base::UserError);
  const auto said_of = [&](std::size_t position) -> std::string {
    std::string bytes = whole;
    bytes[position] = 9;
    try {
      read_damaged(bytes);
      return "";
    } catch (const base::UserError& error) {
      return error.parts().what;
    }
  };
  EXPECT_THAT(said_of(offsetof(internal::FileHeader, version)), testing::HasSubstr("version 9, this program reads"));
  for (const std::size_t position :
       {offsetof(internal::FileHeader, record_bytes), offsetof(internal::FileHeader, ring_records),
        offsetof(internal::FileHeader, num_open_slots)}) {
    EXPECT_THAT(said_of(position), testing::HasSubstr("its header is damaged"));
  }
  EXPECT_THROW(read_damaged(whole.substr(0, whole.size() - 1)), base::UserError);  // its region is not whole
  // Any byte may be wrong without harm to the reader.
  for (std::size_t position = 0; position < whole.size(); position += position < 4096 ? 17 : 1009) {
    std::string bytes = whole;
    bytes[position] = static_cast<char>(bytes[position] ^ 0xff);
    try {
      EXPECT_LE(read_damaged(bytes).spans.size(), 11u);
    } catch (const base::UserError&) {
      EXPECT_LT(position, 4096u);
    }
  }
}

TEST(Ring, WithoutExportersOverwritingIsNoLoss) {
  const TemporaryFolder folder;
  Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .run_folder = folder.path(), .ring_records = 16});
  for (int i = 0; i < 50; ++i) managed_span(Group::kStep, "test.step", {"i", i}).end();
  PHAROS_SPAN(open, Group::kStep, "test.open");
  telemetry.shutdown();
  EXPECT_EQ(telemetry.counts().overwritten, 0u);
  EXPECT_EQ(telemetry.counts().recorded, 50u);
  const RingContents contents = read_ring(telemetry.ring_path());
  EXPECT_EQ(contents.num_overwritten, 34u);
  ASSERT_EQ(contents.spans.size(), 17u);
  EXPECT_EQ(contents.spans.back().name, "test.open");
  EXPECT_EQ(attribute(contents.spans.back(), "nemo.span.truncated"), StoredValue(true));
  EXPECT_TRUE(contents.open_spans.empty());
}

TEST(Ring, DiskWithoutRoomLeavesSpansInMemory) {
  for (const rlim_t limit_bytes : {1000, 300'000}) {  // no room for the header; no room for a thread
    const TemporaryFolder folder;
    testing::internal::CaptureStderr();
    {
      const FileSizeLimit limit(limit_bytes);
      MemoryTelemetry memory(kEveryGroup, small_ring(folder));
      managed_span(Group::kStep, "test.step").end();
      EXPECT_EQ(memory.spans().size(), 1u);
    }
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("telemetry: no room for"));
  }
}

TEST(Ring, UnwritableFolderIsAUserErrorAndLeavesTelemetryOff) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "in the way";
  TelemetryOptions options;
  options.groups = kEveryGroup;
  options.run_folder = folder.path() / "file";
  EXPECT_THROW(Telemetry::init(options), base::UserError);
  EXPECT_EQ(Telemetry::get(), nullptr);
  EXPECT_FALSE(is_telemetry_active());
}

}  // namespace
}  // namespace pharos::lens
