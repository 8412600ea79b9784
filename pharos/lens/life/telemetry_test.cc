// Life of the handle: flush, shutdown, fork, failing exporters, JSON lines.
#include "pharos/lens/life/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <condition_variable>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;

TEST(Telemetry, HandleIsNullOutsideItsLifeAndInitialisesOnce) {
  EXPECT_EQ(Telemetry::get(), nullptr);
  EXPECT_FALSE(is_telemetry_active());
  Telemetry& telemetry = Telemetry::init({.groups = group_bit(Group::kStep)});
  EXPECT_EQ(Telemetry::get(), &telemetry);
  EXPECT_TRUE(is_telemetry_active());
  EXPECT_TRUE(is_span_group_enabled(Group::kStep));
  EXPECT_FALSE(is_span_group_enabled(Group::kJob));
  EXPECT_THROW(Telemetry::init({}), base::InternalError);
  telemetry.shutdown();
  telemetry.shutdown();
  EXPECT_EQ(Telemetry::get(), nullptr);
  EXPECT_EQ(enabled_groups.load(), 0u);
  EXPECT_TRUE(telemetry.force_flush());
  telemetry.set_groups(kEveryGroup);
  EXPECT_EQ(enabled_groups.load(), 0u);
}

TEST(Telemetry, ShutdownClosesOpenSpansChildrenFirst) {
  auto exporter = std::make_shared<MemoryExporter>();
  Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {exporter}}});
  PHAROS_SPAN(outer, Group::kJob, "test.outer", {"a", 1});
  PHAROS_SPAN(inner, Group::kStep, "test.inner");
  managed_span(Group::kStep, "test.ended").end();
  const std::int64_t before = base::monotonic_ns();
  EXPECT_TRUE(telemetry.force_flush());
  EXPECT_EQ(exporter->spans().size(), 1u);  // a flush never closes spans
  telemetry.shutdown();
  outer.set("late", 1);
  inner.end();
  const std::vector<SpanData> spans = exporter->spans();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].name, "test.ended");
  EXPECT_EQ(attribute(spans[0], "nemo.span.truncated"), StoredValue(std::string("absent")));
  EXPECT_EQ(spans[1].name, "test.inner");
  EXPECT_EQ(spans[2].name, "test.outer");
  for (const SpanData& span : {spans[1], spans[2]}) {
    EXPECT_EQ(attribute(span, "nemo.span.truncated"), StoredValue(true));
    EXPECT_EQ(span.status, StatusCode::kUnset);
    EXPECT_GE(span.end_ns, before);
    ASSERT_EQ(span.events.size(), 1u);
    EXPECT_EQ(span.events[0].name, "nemo.span.truncated");
    const StoredAttributes reason = {{"nemo.span.truncated.reason", std::string("still open at telemetry shutdown")}};
    EXPECT_EQ(span.events[0].attributes, reason);
  }
  EXPECT_EQ(attribute(spans[2], "late"), StoredValue(std::string("absent")));
  EXPECT_EQ(telemetry.counts().truncated, 2u);
  // Spans of a session that is over do not disturb the next one.
  MemoryTelemetry next;
  outer.set("later", 1);
  outer.end();
  EXPECT_FALSE(current_context());
  EXPECT_TRUE(next.spans().empty());
}

TEST(Telemetry, ShutdownWhileThreadsRecordLosesNothingThatWasRecorded) {
  auto exporter = std::make_shared<MemoryExporter>();
  Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {exporter}}});
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stop] {
      while (!stop) {
        PHAROS_SPAN(span, Group::kStep, "test.step", {"i", 1});
        span.set("more", 2);
        std::this_thread::sleep_for(20us);
      }
    });
  }
  std::this_thread::sleep_for(50ms);
  telemetry.shutdown();
  const TelemetryCounts counts = telemetry.counts();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(exporter->spans().size(), telemetry.counts().recorded + counts.truncated);
  EXPECT_GT(counts.recorded, 0u);
}

class FailingExporter : public Exporter {
 public:
  std::string name() const override { return "failing"; }
  void export_spans(const std::vector<SpanData>&, const Resource&) override { throw std::runtime_error("no route"); }
};

TEST(Telemetry, FailingExporterIsCountedAndSaidOnceAndHurtsNoOther) {
  testing::internal::CaptureStderr();
  auto memory = std::make_shared<MemoryExporter>();
  Telemetry& telemetry = Telemetry::init(
      {.groups = kEveryGroup, .pipeline = {.exporters = {std::make_shared<FailingExporter>(), memory}}});
  for (int i = 0; i < 3; ++i) {
    managed_span(Group::kStep, "test.step").end();
    EXPECT_TRUE(telemetry.force_flush());
  }
  telemetry.shutdown();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(memory->spans().size(), 3u);
  EXPECT_EQ(telemetry.counts().failed_exports, 3u);
  EXPECT_EQ(telemetry.counts().exported, 0u);
  EXPECT_THAT(said, testing::HasSubstr("telemetry: exporter failing failed: no route"));
  EXPECT_EQ(said.find("no route"), said.rfind("no route"));
}

TEST(Telemetry, FullDiskOfAFileIsCounted) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  testing::internal::CaptureStderr();
  Telemetry& telemetry =
      Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {make_file_exporter("/dev/full")}}});
  managed_span(Group::kStep, "test.step").end();
  telemetry.shutdown();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("No space left on device"));
  EXPECT_EQ(telemetry.counts().failed_exports, 1u);
}

class HangingExporter : public Exporter {
 public:
  std::string name() const override { return "hanging"; }
  void export_spans(const std::vector<SpanData>&, const Resource&) override {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return is_released_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_released_ = false;
};

TEST(Telemetry, ShutdownIsBoundedWhenAnExporterHangs) {
  testing::internal::CaptureStderr();
  auto exporter = std::make_shared<HangingExporter>();
  Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {exporter}}});
  managed_span(Group::kStep, "test.step").end();
  EXPECT_FALSE(telemetry.force_flush(50ms));
  const std::int64_t start = base::monotonic_ns();
  telemetry.shutdown(100ms);
  EXPECT_LT(base::monotonic_ns() - start, 2'000'000'000);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("did not finish within 100 ms"));
  exporter->release();
}

TEST(Telemetry, ForkedChildHasTelemetryOff) {
  const TemporaryFolder folder;
  TelemetryOptions options;
  options.run_folder = folder.path();
  options.file_exporter = true;
  MemoryTelemetry memory(kEveryGroup, options);
  PHAROS_SPAN(span, Group::kStep, "test.parent");
  const pid_t child = fork();
  if (child == 0) {
    const bool is_off = Telemetry::get() == nullptr && !is_telemetry_active() && !current_context() &&
                        !managed_span(Group::kStep, "test.child");
    span.set("child", true);
    span.end();
    memory.telemetry().shutdown();
    _exit(is_off ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(memory.spans().empty());
  EXPECT_TRUE(span);
  span.end();
  ASSERT_EQ(memory.spans().size(), 1u);
  EXPECT_TRUE(memory.span("test.parent").attributes.empty());
}

TEST(Telemetry, FileExporterAppendsOneLinePerSpan) {
  const TemporaryFolder folder;
  for (int i = 0; i < 2; ++i) {
    Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .run_folder = folder.path(), .file_exporter = true});
    managed_span(Group::kStep, "test.step", {"i", i}).end();
    telemetry.shutdown();
  }
  const std::string text = base::read_file(folder.path() / "trace" / "spans.jsonl");
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  const auto second = nlohmann::json::parse(text.substr(text.find('\n') + 1));
  EXPECT_EQ(second["attributes"]["i"], 1);
  EXPECT_EQ(second["resource"]["attributes"]["dl.rank"], 0);
}

SpanData example_span() {
  SpanData span;
  span.name = "megatron.train";
  span.context = {0x0123456789abcdef, 0xfedcba9876543210, 0x00000000000000ff};
  span.start_ns = 1'000;
  span.end_ns = 1'500'000'000 + 1'000;
  span.status = StatusCode::kError;
  span.status_description = "lost";
  span.attributes = {{"b", true},
                     {"a", std::int64_t{-3}},
                     {"d", std::numeric_limits<double>::quiet_NaN()},
                     {"half", 0.5},
                     {"bytes", std::string("\xff\"\n")},
                     {"list", std::vector<std::int64_t>{1, 2}}};
  span.events.push_back({"exception", 500'001'000, {{"exception.escaped", std::string("False")}}});
  span.links.push_back({1, 2, 3});
  return span;
}

// lens.md section 8.4: keys, their order, identifiers, times.
TEST(JsonLine, HasTheSchemaOfTheConsoleExporter) {
  Resource resource;
  resource.attributes = {{"service.name", std::string("pharos")}};
  resource.wall_anchor_ns = 1'700'000'000'000'000'000;
  resource.monotonic_anchor_ns = 1'000;
  const std::string line = to_json_line(example_span(), resource);
  EXPECT_EQ(line,
            R"({"name":"megatron.train","context":{"trace_id":"0x0123456789abcdeffedcba9876543210",)"
            R"("span_id":"0x00000000000000ff","trace_state":"[]"},"kind":"SpanKind.INTERNAL","parent_id":null,)"
            R"("start_time":"2023-11-14T22:13:20.000000Z","end_time":"2023-11-14T22:13:21.500000Z",)"
            R"("status":{"status_code":"ERROR","description":"lost"},)"
            R"("attributes":{"b":true,"a":-3,"d":"NaN","half":0.5,"bytes":"�\"\n","list":[1,2]},)"
            R"("events":[{"name":"exception","timestamp":"2023-11-14T22:13:20.500000Z",)"
            R"("attributes":{"exception.escaped":"False"}}],)"
            R"("links":[{"context":{"trace_id":"0x00000000000000010000000000000002","span_id":"0x0000000000000003",)"
            R"("trace_state":"[]"},"attributes":{}}],)"
            R"("resource":{"attributes":{"service.name":"pharos"},"schema_url":""}})");
}

TEST(JsonLine, OfAPlainChildIsShort) {
  SpanData span = example_span();
  span.status = StatusCode::kUnset;
  span.parent_span_id = 0xab;
  const auto json = nlohmann::json::parse(to_json_line(span, {}));
  EXPECT_EQ(json["parent_id"], "0x00000000000000ab");
  EXPECT_EQ(json["status"], nlohmann::json({{"status_code", "UNSET"}}));
}

TEST(Console, WritesWholeLinesToItsDescriptor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  make_console_exporter(ends[1])->export_spans({example_span(), example_span()}, {});
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  close(ends[0]);
  ASSERT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(nlohmann::json::parse(text.substr(0, text.find('\n')))["name"], "megatron.train");
}

}  // namespace
}  // namespace pharos::lens
