#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/lens/logs/log_queue.h"
#include "pharos/lens/logs/logger.h"
#include "pharos/lens/logs/severity.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

/// A queue that is installed for the length of a scope.
class InstalledQueue {
 public:
  explicit InstalledQueue(LogOptions options = {}) : queue_(options), before_(install_log_queue(&queue_)) {}
  ~InstalledQueue() { install_log_queue(before_); }
  LogQueue& queue() { return queue_; }
  std::vector<LogData> take() { return queue_.take(1000); }
  /// The only record.
  LogData record() {
    const std::vector<LogData> records = take();
    EXPECT_EQ(records.size(), 1u);
    return records.empty() ? LogData() : records.front();
  }

 private:
  LogQueue queue_;
  LogQueue* before_;
};

StoredValue attribute(const LogData& log, const std::string& key) {
  for (const auto& [known, value] : log.attributes) {
    if (known == key) return value;
  }
  return std::string("absent");
}

TEST(Severity, PythonLevelsBecomeNumbersAndTexts) {
  struct Case {
    int level;
    int number;
    const char* text;
  };
  const Case cases[] = {
      {0, 0, "NOTSET"},     {9, 0, "Level 9"},    {10, 5, "DEBUG"},         {11, 6, "Level 11"},  {12, 7, "Level 12"},
      {13, 8, "Level 13"},  {19, 8, "Level 19"},  {20, 9, "INFO"},          {21, 10, "Level 21"}, {22, 11, "Level 22"},
      {23, 12, "Level 23"}, {29, 12, "Level 29"}, {30, 13, "WARN"},         {31, 14, "Level 31"}, {39, 16, "Level 39"},
      {40, 17, "ERROR"},    {42, 19, "Level 42"}, {50, 21, "FATAL"},        {51, 22, "Level 51"}, {52, 23, "Level 52"},
      {53, 24, "Level 53"}, {60, 24, "Level 60"}, {1000, 24, "Level 1000"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(static_cast<int>(severity_of_python_level(c.level)), c.number) << c.level;
    EXPECT_EQ(text_of_python_level(c.level), c.text) << c.level;
  }
}

TEST(Severity, TextsOfNumbers) {
  EXPECT_EQ(severity_text(Severity::kUnspecified), "");
  EXPECT_EQ(severity_text(static_cast<Severity>(1)), "TRACE");
  EXPECT_EQ(severity_text(Severity::kDebug), "DEBUG");
  EXPECT_EQ(severity_text(static_cast<Severity>(10)), "INFO2");
  EXPECT_EQ(severity_text(Severity::kWarn), "WARN");
  EXPECT_EQ(severity_text(Severity::kFatal), "FATAL");
  EXPECT_EQ(severity_text(static_cast<Severity>(24)), "FATAL4");
  EXPECT_EQ(severity_text(static_cast<Severity>(25)), "");
}

TEST(Severity, NamesAreReadInAnyCase) {
  EXPECT_EQ(parse_severity("debug"), Severity::kDebug);
  EXPECT_EQ(parse_severity("Info"), Severity::kInfo);
  EXPECT_EQ(parse_severity("WARNING"), Severity::kWarn);
  EXPECT_EQ(parse_severity("error"), Severity::kError);
  EXPECT_EQ(parse_severity("critical"), Severity::kFatal);
  EXPECT_THROW(parse_severity("loud"), base::UserError);
}

void write_a_record(const Logger& logger) { logger.info("loading", {{"iteration", 7}, {"password", "secret"}}); }

TEST(Logs, ARecordCarriesScopeSeverityTimesAndItsPlace) {
  InstalledQueue installed;
  const std::int64_t before = base::wall_ns();
  write_a_record(Logger("pharos.checkpoint"));
  const LogData log = installed.record();
  EXPECT_EQ(log.body, "loading");
  EXPECT_EQ(log.scope, "pharos.checkpoint");
  EXPECT_EQ(log.severity, Severity::kInfo);
  EXPECT_EQ(log.severity_text, "INFO");
  EXPECT_GE(log.time_ns, before);
  EXPECT_GE(log.observed_time_ns, log.time_ns);
  ASSERT_EQ(log.attributes.size(), 5u);
  EXPECT_EQ(log.attributes[0].first, "iteration");  // the caller's first, as nemo-lens sends them
  EXPECT_EQ(attribute(log, "iteration"), StoredValue(std::int64_t{7}));
  EXPECT_EQ(attribute(log, "password"), StoredValue(std::string("[REDACTED]")));
  EXPECT_TRUE(std::get<std::string>(attribute(log, "code.file.path")).ends_with("log_test.cc"));
  EXPECT_TRUE(std::get<std::string>(attribute(log, "code.function.name")).ends_with("write_a_record"))
      << std::get<std::string>(attribute(log, "code.function.name"));
  EXPECT_GT(std::get<std::int64_t>(attribute(log, "code.line.number")), 0);
}

TEST(Logs, ARecordBelongsToTheCurrentSpan) {
  MemoryTelemetry telemetry;
  InstalledQueue installed;
  const Logger logger("pharos");
  logger.warn("before any span");
  const LogData outside = installed.record();
  EXPECT_FALSE(outside.context);
  EXPECT_EQ(outside.context.trace_id_high, 0u);
  EXPECT_EQ(outside.context.trace_flags, 0);
  SpanScope span = span_cm("megatron.startup");
  logger.info("loading");
  const LogData inside = installed.record();
  EXPECT_EQ(inside.context, span.context());
  EXPECT_EQ(inside.context.trace_flags, 3);
}

TEST(Logs, EveryLevelHasAMethod) {
  InstalledQueue installed({.minimum = Severity::kDebug});
  const Logger logger("pharos");
  logger.debug("d");
  logger.info("i");
  logger.warn("w");
  logger.error("e");
  logger.fatal("f");
  std::string texts;
  for (const LogData& log : installed.take()) texts += log.severity_text + " " + log.body + ";";
  EXPECT_EQ(texts, "DEBUG d;INFO i;WARN w;ERROR e;FATAL f;");
}

TEST(Logs, RecordsBelowTheMinimumAreIgnored) {
  InstalledQueue installed({.minimum = Severity::kWarn});
  const Logger logger("pharos");
  logger.info("i");
  logger.log(static_cast<Severity>(12), "info4");
  EXPECT_EQ(installed.queue().size(), 0u);
  logger.warn("w");
  EXPECT_EQ(installed.record().body, "w");
  EXPECT_EQ(installed.queue().counts().emitted, 1u);
  EXPECT_EQ(installed.queue().counts().suppressed, 0u);
}

TEST(Logs, AnExceptionIsDescribed) {
  InstalledQueue installed;
  Logger("pharos").error("saving failed", std::runtime_error("disk full"));
  const LogData log = installed.record();
  EXPECT_EQ(log.severity, Severity::kError);
  EXPECT_EQ(attribute(log, "exception.type"), StoredValue(std::string("runtime_error")));
  EXPECT_EQ(attribute(log, "exception.message"), StoredValue(std::string("disk full")));
}

TEST(Logs, NothingHappensWithoutAQueue) {
  ASSERT_EQ(installed_log_queue(), nullptr);
  Logger("pharos").error("e");
  log_line(Severity::kInfo, "line");
  InstalledQueue installed;
  EXPECT_EQ(installed.queue().size(), 0u);
}

TEST(Logs, TheLinesOfTheRunAreRecords) {
  InstalledQueue installed;
  log_line(Severity::kInfo, " iteration 10/ 100 | loss: 2.5\n");
  log_line(Severity::kInfo, "\n");
  const LogData log = installed.record();
  EXPECT_EQ(log.body, " iteration 10/ 100 | loss: 2.5");
  EXPECT_EQ(log.scope, "pharos");
  EXPECT_TRUE(std::get<std::string>(attribute(log, "code.file.path")).ends_with("log_test.cc"));
}

TEST(LogQueue, TheOldestGoesWhenItIsFull) {
  LogQueue queue({.capacity = 3, .rate_per_second = 0});
  for (const char* body : {"1", "2", "3", "4", "5"}) EXPECT_TRUE(queue.emit({.body = body}));
  EXPECT_EQ(queue.counts().emitted, 5u);
  EXPECT_EQ(queue.counts().dropped, 2u);
  const std::vector<LogData> first = queue.take(2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].body, "3");
  EXPECT_EQ(first[1].body, "4");
  EXPECT_EQ(queue.take(10).size(), 1u);
  EXPECT_TRUE(queue.take(10).empty());
}

TEST(LogQueue, ACallSiteThatTalksTooMuchIsSuppressedAndSaysSo) {
  std::int64_t now_ns = 0;
  LogQueue queue({.capacity = 1000, .rate_per_second = 10, .burst = 50}, [&now_ns] { return now_ns; });
  const auto talk = [&queue](int count) {
    int num_passed = 0;
    for (int i = 0; i < count; ++i) num_passed += queue.emit({.body = "again"});
    return num_passed;
  };
  EXPECT_EQ(talk(80), 50);
  EXPECT_EQ(queue.counts().suppressed, 30u);
  EXPECT_TRUE(queue.emit({.body = "another place"}));
  queue.take(1000);
  now_ns += 500'000'000;  // 5 more
  EXPECT_EQ(talk(8), 5);
  const std::vector<LogData> records = queue.take(1000);
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(attribute(records[0], "megatron.log.suppressed"), StoredValue(std::int64_t{30}));
  EXPECT_EQ(attribute(records[1], "megatron.log.suppressed"), StoredValue(std::string("absent")));
  now_ns += std::int64_t{3600} * 1'000'000'000;
  EXPECT_EQ(talk(80), 50) << "an hour of silence is worth one burst";
  EXPECT_EQ(attribute(queue.take(1)[0], "megatron.log.suppressed"), StoredValue(std::int64_t{3}));
}

TEST(LogQueue, ASeverityTextAndATimeMayBeGiven) {
  LogQueue queue;
  queue.emit({.severity = severity_of_python_level(25), .severity_text = "Level 25", .body = "b", .time_ns = 5});
  const LogData log = queue.take(1).at(0);
  EXPECT_EQ(static_cast<int>(log.severity), 12);
  EXPECT_EQ(log.severity_text, "Level 25");
  EXPECT_EQ(log.time_ns, 5);
  EXPECT_GT(log.observed_time_ns, 5);
}

TEST(LogQueue, AForkedChildLeavesTheQueueOfItsParentAlone) {
  LogQueue queue;
  const pid_t child = fork();
  if (child == 0) {
    const bool is_ignored = !queue.emit({.body = "from the child"});
    LogQueue own;
    _exit(is_ignored && own.emit({.body = "its own"}) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(queue.emit({.body = "from the parent"}));
}

TEST(LogQueue, NothingIsLostBetweenThreads) {
  constexpr int kThreads = 8;
  constexpr int kRecords = 2000;
  LogQueue queue({.capacity = 100'000, .rate_per_second = 0});
  std::atomic<int> running{kThreads};
  std::size_t num_taken = 0;
  std::thread reader([&] {
    while (running.load() != 0) num_taken += queue.take(64).size();
  });
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&] {
      for (int i = 0; i < kRecords; ++i) queue.emit({.body = "b", .scope = "s"});
      --running;
    });
  }
  for (std::thread& writer : writers) writer.join();
  reader.join();
  num_taken += queue.take(100'000).size();
  EXPECT_EQ(num_taken, static_cast<std::size_t>(kThreads) * kRecords);
  EXPECT_EQ(queue.counts().emitted, num_taken);
  EXPECT_EQ(queue.counts().dropped, 0u);
}

}  // namespace
}  // namespace pharos::lens
