// Queues, batches and counts of the pipeline, with exporters that fail and a receiver that misbehaves.
#include "pharos/lens/life/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "pharos/lens/life/test_receiver.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/metrics/meter.h"

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;
using otlp::Signal;
using testing::HasSubstr;

ItemCounts counts_of(const Pipeline& pipeline, Signal signal) {
  return pipeline.counts()[static_cast<std::size_t>(signal)];
}

std::uint64_t sum(const ItemCounts& counts) {
  return counts.exported + counts.dropped + counts.failed + counts.rejected + counts.queued;
}

std::vector<SpanData> make_spans(int count) {
  SpanData span;
  span.name = "test.step";
  span.context = {1, 2, 3};
  return {static_cast<std::size_t>(count), span};
}

TestReceiver::Answer always(const std::string& answer) {
  return [answer](int) { return answer; };
}

/// Turns until everything that is in the pipeline now is settled. False when that takes implausibly long.
bool settle(Pipeline& pipeline) {
  const Pipeline::Position position = pipeline.position();
  for (int turn = 0; turn < 2000; ++turn) {
    pipeline.turn(true, 10ms);
    if (pipeline.is_settled(position)) return true;
  }
  return false;
}

TEST(Pipeline, SendsFullBatchesAtOnceAndTheRestWhenAsked) {
  TestReceiver receiver(always(http_answer("200 OK")));
  Pipeline pipeline({.otlp = receiver.options(), .spans = {.schedule_delay = 1h, .max_batch = 10}}, {}, nullptr,
                    nullptr);
  pipeline.add_spans(make_spans(25));
  for (int turn = 0; turn < 2000 && counts_of(pipeline, Signal::kTraces).exported < 20; ++turn) {
    pipeline.turn(false, 10ms);
  }
  EXPECT_EQ(receiver.num_requests(), 2);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).queued, 5u);
  EXPECT_FALSE(pipeline.is_settled(pipeline.position()));
  EXPECT_TRUE(settle(pipeline));
  EXPECT_EQ(receiver.num_requests(), 3);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).exported, 25u);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).queued, 0u);
}

TEST(Pipeline, ItemsDoNotWaitLongerThanTheirDelay) {
  TestReceiver receiver(always(http_answer("200 OK")));
  Pipeline pipeline({.otlp = receiver.options(), .spans = {.schedule_delay = 1ms}}, {}, nullptr, nullptr);
  pipeline.add_spans(make_spans(3));
  for (int turn = 0; turn < 2000 && counts_of(pipeline, Signal::kTraces).exported == 0; ++turn) {
    pipeline.turn(false, 10ms);
  }
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).exported, 3u);
}

TEST(Pipeline, FullQueueDropsTheOldestAndCounts) {
  testing::internal::CaptureStderr();
  const TestReceiver hanging(nullptr);
  Pipeline pipeline({.otlp = hanging.options(), .spans = {.max_queue = 20, .max_batch = 2}}, {}, nullptr, nullptr);
  pipeline.add_spans(make_spans(100));
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).dropped, 80u);
  const Pipeline::Position position = pipeline.position();
  pipeline.turn(true, 0ms);  // four requests of two are under way, twelve spans wait
  pipeline.add_spans(make_spans(10));
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).dropped, 82u);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).queued, 28u);
  EXPECT_FALSE(pipeline.is_settled(position));
  pipeline.give_up();
  EXPECT_TRUE(pipeline.is_settled(pipeline.position()));
  const ItemCounts counts = counts_of(pipeline, Signal::kTraces);
  EXPECT_EQ(counts.failed, 8u);
  EXPECT_EQ(counts.dropped, 102u);
  EXPECT_EQ(sum(counts), 110u);
  EXPECT_EQ(counts.queued, 0u);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("telemetry: OTLP traces: cancelled after"));
  EXPECT_THAT(said, HasSubstr("without an answer (" + hanging.url()));
  EXPECT_THAT(said, HasSubstr("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

struct AnswerCase {
  const char* what;
  TestReceiver::Answer answer;
  std::chrono::milliseconds timeout;
  ItemCounts expected;  ///< of ten items
  const char* message;  ///< nullptr: nothing is said
};

std::vector<AnswerCase> answer_cases() {
  return {
      {"accepted", always(http_answer("200 OK")), 10s, {.exported = 10}, nullptr},
      {"refused", always(http_answer("400 Bad Request")), 10s, {.failed = 10}, "HTTP status 400"},
      {"partly", always(http_answer("200 OK", kThreeRejected)), 10s, {.exported = 7, .rejected = 3}, "rejected 3"},
      {"busy", always(http_answer("503 Busy", "", "Retry-After: 600\r\n")), 10s, {.failed = 10}, "wait for 600.0 s"},
      {"busy once",
       [](int number) { return http_answer(number == 0 ? "503 Busy" : "200 OK", "", "Retry-After: 0.1\r\n"); },
       10s,
       {.exported = 10},
       nullptr},
      {"hangs up", always(""), 500ms, {.failed = 10}, "gave up after 1 try"},
      {"hangs up once",
       [](int number) { return number == 0 ? "" : http_answer("200 OK"); },
       10s,
       {.exported = 10},
       nullptr},
      {"hangs", nullptr, 400ms, {.failed = 10}, "gave up after 1 try"},
  };
}

TEST(Pipeline, CountsWhatBecameOfSpansAndRecords) {
  for (const AnswerCase& one : answer_cases()) {
    for (const Signal signal : {Signal::kTraces, Signal::kLogs}) {
      SCOPED_TRACE(std::string(one.what) + " " + otlp::signal_name(signal));
      testing::internal::CaptureStderr();
      TestReceiver receiver(one.answer);
      LogQueue logs({.rate_per_second = 0});
      Pipeline pipeline({.otlp = receiver.options(one.timeout)}, {}, nullptr, &logs);
      if (signal == Signal::kTraces) pipeline.add_spans(make_spans(10));
      for (int i = 0; signal == Signal::kLogs && i < 10; ++i) logs.emit({.body = "text"});
      pipeline.take_logs();
      EXPECT_TRUE(settle(pipeline));
      const std::string said = testing::internal::GetCapturedStderr();
      const ItemCounts counts = counts_of(pipeline, signal);
      EXPECT_EQ(counts.exported, one.expected.exported);
      EXPECT_EQ(counts.failed, one.expected.failed);
      EXPECT_EQ(counts.rejected, one.expected.rejected);
      EXPECT_EQ(counts.dropped + counts.queued, 0u);
      if (one.message == nullptr) {
        EXPECT_EQ(said, "");
        continue;
      }
      EXPECT_THAT(said, HasSubstr(std::string("telemetry: OTLP ") + otlp::signal_name(signal)));
      EXPECT_THAT(said, HasSubstr(one.message));
      EXPECT_THAT(said, HasSubstr(receiver.url()));
      EXPECT_THAT(said, HasSubstr("the run goes on, losses are counted\n"));
    }
  }
}

TEST(Pipeline, SaysAFaultOnceAndALaterLossAfterAWarningToo) {
  const std::string warning("\x0a\x07\x12\x05hurry", 9);  // partial success without rejected items
  TestReceiver receiver(
      [&](int number) { return number < 2 ? http_answer("200 OK", warning) : http_answer("400 Bad Request"); });
  testing::internal::CaptureStderr();
  Pipeline pipeline({.otlp = receiver.options()}, {}, nullptr, nullptr);
  for (int request = 0; request < 4; ++request) {
    pipeline.add_spans(make_spans(1));
    EXPECT_TRUE(settle(pipeline));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the receiver warns: hurry"));
  EXPECT_THAT(said, HasSubstr("HTTP status 400"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).exported, 2u);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).failed, 2u);
}

TEST(Pipeline, CountsPointsOfEachCollection) {
  TestReceiver receiver([](int number) { return http_answer(number == 0 ? "200 OK" : "400 Bad Request"); });
  MeterProvider metrics;
  const auto counter = metrics.meter().create_counter<std::int64_t>("test.steps");
  Pipeline pipeline({.otlp = receiver.options(), .metric_interval = 1h}, {}, &metrics, nullptr);
  testing::internal::CaptureStderr();
  for (int collection = 0; collection < 2; ++collection) {
    counter.add(1, {{"kind", "a"}});
    counter.add(1, {{"kind", "b"}});
    pipeline.request_collection(collection == 1);
    EXPECT_TRUE(settle(pipeline));  // the requested collection is waited for
  }
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(receiver.num_requests(), 2);
  EXPECT_EQ(counts_of(pipeline, Signal::kMetrics).exported, 2u);
  EXPECT_EQ(counts_of(pipeline, Signal::kMetrics).failed, 2u);
}

TEST(Pipeline, LeavesCollectionsOutWhileAReceiverHangs) {
  const TestReceiver hanging(nullptr);
  MeterProvider metrics;
  metrics.meter().create_counter<std::int64_t>("test.steps").add(1);
  Pipeline pipeline({.otlp = hanging.options(), .metric_interval = 0ms}, {}, &metrics, nullptr);
  for (int turn = 0; turn < 20; ++turn) pipeline.turn(false, 0ms);
  EXPECT_EQ(counts_of(pipeline, Signal::kMetrics).queued, static_cast<std::uint64_t>(otlp::Sender::kMaxInFlight));
  testing::internal::CaptureStderr();
  pipeline.give_up();
  testing::internal::GetCapturedStderr();
}

struct ThrowingExporter : Exporter {
  std::string name() const override { return "throwing"; }
  void export_spans(const std::vector<SpanData>&, const Resource&) override { throw 42; }
  void export_logs(const std::vector<LogData>&, const Resource&) override { throw std::runtime_error("no room"); }
};

TEST(Pipeline, AnItemFailsOnceHoweverManyExportersFail) {
  testing::internal::CaptureStderr();
  LogQueue logs;
  auto memory = std::make_shared<MemoryExporter>();
  Pipeline pipeline({.exporters = {std::make_shared<ThrowingExporter>(), memory, std::make_shared<ThrowingExporter>()}},
                    {}, nullptr, &logs);
  pipeline.add_spans(make_spans(5));
  logs.emit({.body = "text"});
  pipeline.turn(true, 0ms);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("exporter throwing failed: no room"));
  EXPECT_EQ(memory->spans().size(), 5u);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).failed, 5u);
  EXPECT_EQ(counts_of(pipeline, Signal::kLogs).failed, 1u);
  EXPECT_EQ(sum(counts_of(pipeline, Signal::kTraces)), 5u);
}

TEST(Pipeline, ExporterThatFailsBesideOtlpDoesNotSpoilItsCounts) {
  testing::internal::CaptureStderr();
  TestReceiver receiver(always(http_answer("200 OK")));
  Pipeline pipeline({.exporters = {std::make_shared<ThrowingExporter>()}, .otlp = receiver.options()}, {}, nullptr,
                    nullptr);
  pipeline.add_spans(make_spans(5));
  EXPECT_TRUE(settle(pipeline));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("exporter throwing failed: an exception of unknown"));
  const ItemCounts counts = counts_of(pipeline, Signal::kTraces);
  EXPECT_EQ(counts.exported, 5u);
  EXPECT_EQ(counts.failed_locally, 5u);
  EXPECT_EQ(sum(counts), 5u);
}

TEST(Pipeline, SignalsThatAreNotSentAreNotKept) {
  const TestReceiver hanging(nullptr);
  LogQueue logs;
  Pipeline pipeline({.otlp = hanging.options(), .sends_traces = false, .sends_logs = false}, {}, nullptr, &logs);
  EXPECT_FALSE(pipeline.wants_spans());
  pipeline.add_spans(make_spans(5));
  logs.emit({.body = "text"});
  pipeline.turn(true, 0ms);
  EXPECT_EQ(counts_of(pipeline, Signal::kTraces).queued, 0u);
  EXPECT_EQ(counts_of(pipeline, Signal::kLogs).queued, 0u);
  EXPECT_EQ(logs.size(), 0u);
  EXPECT_TRUE(pipeline.is_settled(pipeline.position()));
}

TEST(Pipeline, WakeEndsAWait) {
  const TestReceiver hanging(nullptr);
  Pipeline pipeline({.otlp = hanging.options()}, {}, nullptr, nullptr);
  std::thread waker([&pipeline] { pipeline.wake(); });
  pipeline.turn(false, 1h);  // else the test's time limit strikes
  waker.join();
}

}  // namespace
}  // namespace pharos::lens
