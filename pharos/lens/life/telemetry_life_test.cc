// Telemetry never hurts its process: start that fails, flush, bounded shutdown, counts that add up, forks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/life/test_receiver.h"
#include "pharos/lens/logs/logger.h"
#include "pharos/lens/metrics/meter.h"
#include "pharos/lens/setup/setup_telemetry.h"
#include "pharos/lens/span.h"
#include "pharos/lens/test_support.h"

extern char** environ;

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;
using otlp::Signal;
using testing::HasSubstr;

/// Far above what is promised, because machines that run tests are busy.
constexpr auto kPatience = 20s;

void record_spans(int count) {
  for (int i = 0; i < count; ++i) managed_span(Group::kStep, "test.step").end();
}

ItemCounts counts_of(const Telemetry& telemetry, Signal signal) {
  return telemetry.counts().signals[static_cast<std::size_t>(signal)];
}

/// recorded = exported + overwritten + dropped + failed + rejected, after shutdown.
void expect_spans_add_up(const Telemetry& telemetry) {
  const TelemetryCounts counts = telemetry.counts();
  EXPECT_EQ(counts.recorded + counts.truncated, counts.exported + counts.overwritten + counts.failed_exports);
  for (const ItemCounts& signal : counts.signals) EXPECT_EQ(signal.queued, 0u);
}

TelemetryOptions sending_to(const TestReceiver& receiver) {
  TelemetryOptions options{.groups = kEveryGroup, .collects_logs = true};
  options.pipeline.otlp = receiver.options();
  return options;
}

/// Holds the exporter thread up until it is released.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void wait_for_someone() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int num_waiting_ = 0;
};

struct GatedExporter : MemoryExporter {
  Gate gate;
  std::string name() const override { return "gated"; }
  void export_spans(const std::vector<SpanData>& spans, const Resource& resource) override {
    gate.pass();
    MemoryExporter::export_spans(spans, resource);
  }
};

/// What set-up could leave behind in a process.
struct Traces {
  std::size_t num_threads = 0;
  std::map<int, decltype(sigaction::sa_handler)> handlers;
  std::vector<std::string> environment;
  sigset_t blocked = {};

  Traces() {
    for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++num_threads;
    for (const int signal : {SIGTERM, SIGINT, SIGPIPE, SIGHUP}) {
      struct sigaction action = {};
      sigaction(signal, nullptr, &action);
      handlers[signal] = action.sa_handler;
    }
    for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  }
};

void expect_same(const Traces& before, const Traces& after) {
  EXPECT_LE(after.num_threads, before.num_threads);  // those of other tests may just end
  EXPECT_EQ(before.handlers, after.handlers);
  EXPECT_EQ(before.environment, after.environment);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&before.blocked, signal), sigismember(&after.blocked, signal)) << signal;
  }
  EXPECT_EQ(enabled_groups.load(), 0u);
  EXPECT_EQ(Telemetry::get(), nullptr);
  EXPECT_EQ(installed_log_queue(), nullptr);
}

// lens.md section 15, A3 and A12.
TEST(TelemetryLife, CanBeginAgainAfterItsEnd) {
  std::vector<Telemetry*> handles;
  for (int life = 1; life <= 3; ++life) {
    auto exporter = std::make_shared<MemoryExporter>();
    handles.push_back(&Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {exporter}}}));
    record_spans(life);
    handles.back()->shutdown();
    EXPECT_EQ(exporter->spans().size(), static_cast<std::size_t>(life));
  }
  for (std::size_t life = 0; life < 3; ++life) {
    EXPECT_EQ(handles[life]->counts().recorded, life + 1);
    expect_spans_add_up(*handles[life]);
  }
}

TEST(TelemetryLife, ShutdownClosesConnections) {
  TestReceiver receiver([](int) { return http_answer("200 OK"); });
  const auto count_descriptors = [] {
    const std::filesystem::directory_iterator descriptors("/proc/self/fd");
    return std::distance(begin(descriptors), end(descriptors));
  };
  const auto before = count_descriptors();
  for (int life = 0; life < 3; ++life) {
    Telemetry& telemetry = Telemetry::init(sending_to(receiver));
    record_spans(1);
    telemetry.shutdown(kPatience);
    EXPECT_EQ(telemetry.counts().exported, 1u);
    EXPECT_TRUE(telemetry.is_exporting());
    EXPECT_TRUE(telemetry.force_flush());
  }
  EXPECT_LE(count_descriptors(), before + 1);  // the receiver may be just closing its end
}

// lens.md section 15, A6.
TEST(TelemetryLife, FailedStartChangesNothingAndCanBeTriedAgain) {
  const TemporaryFolder folder;
  base::write_file_atomically(folder.path() / "file", "not a folder");
  const Traces before;
  TelemetryOptions options{
      .groups = kEveryGroup, .run_folder = folder.path() / "file", .collects_logs = true, .handles_signals = true};
  options.pipeline.exporters = {std::make_shared<MemoryExporter>()};
  EXPECT_THROW(Telemetry::init(options), base::UserError);
  expect_same(before, Traces());
  options.run_folder = folder.path() / "run";
  Telemetry& telemetry = Telemetry::init(options);
  record_spans(3);
  telemetry.shutdown();
  EXPECT_EQ(telemetry.counts().exported, 3u);
}

/// While it lives, no thread can be made: the kernel has no room for such a stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() { pthread_setattr_default_np(&before_); }
  NoThreads(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

TEST(TelemetryLife, StartWithoutRoomForAThreadIsUndone) {
  const TemporaryFolder folder;
  const std::filesystem::path ring = folder.path() / "trace/rank_0.ring";
  std::filesystem::create_directories(ring.parent_path());
  base::write_file_atomically(ring, "the run before");
  TelemetryOptions options{.groups = kEveryGroup, .run_folder = folder.path(), .collects_logs = true};
  options.pipeline.exporters = {std::make_shared<MemoryExporter>()};
  const Traces before;
  for (const bool handles_signals : {false, true}) {
    options.handles_signals = handles_signals;
    const NoThreads none;
    EXPECT_THROW(Telemetry::init(options), base::UserError);
    expect_same(before, Traces());
    EXPECT_EQ(base::read_file(ring), "the run before");
  }
  Telemetry& telemetry = Telemetry::init(options);
  record_spans(3);
  telemetry.shutdown();
  EXPECT_EQ(telemetry.counts().exported, 3u);
}

// lens.md section 15, A3 and A4.
TEST(TelemetryLife, DisabledSetupTouchesNothing) {
  const TemporaryFolder folder;
  const Traces before;
  const MapEnvironment environment;
  SetupInput input;
  input.run_folder = folder.path();
  input.handles_signals = true;
  input.exporters = {std::make_shared<MemoryExporter>()};
  const SetupResult result = setup_telemetry(load_settings(environment, {}), input, environment);
  EXPECT_EQ(result.telemetry, nullptr);
  EXPECT_FALSE(result.is_exporting);
  expect_same(before, Traces());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(TelemetryLife, SetupThatFailsTouchesNothing) {
  const Traces before;
  const std::pair<const char*, const char*> wrong[] = {{"NEMO_LENS_EXPORT_STRATEGY", "nobody"},
                                                       {"NEMO_LENS_SPAN_GROUPS", "no-such-group"},
                                                       {"NEMO_LENS_EXPORTER", "carrier-pigeon"},
                                                       {"NEMO_LENS_EXPORTER", "file"},  // there is no run folder
                                                       {"OTEL_METRIC_EXPORT_INTERVAL", "soon"}};
  for (const auto& [name, value] : wrong) {
    const MapEnvironment environment({{"NEMO_LENS_ENABLED", "1"}, {name, value}});
    EXPECT_THROW(setup_telemetry(load_settings(environment, {}), {}, environment), base::UserError) << name;
    expect_same(before, Traces());
  }
}

TEST(TelemetryLife, FlushWaitsForDelivery) {
  Gate gate;
  TestReceiver receiver([&gate](int) {
    gate.pass();
    return http_answer("200 OK");
  });
  Telemetry& telemetry = Telemetry::init(sending_to(receiver));
  record_spans(5);
  Logger("test").info("text");
  EXPECT_FALSE(telemetry.force_flush(50ms));
  EXPECT_EQ(telemetry.counts().exported, 0u);
  gate.open();
  EXPECT_TRUE(telemetry.force_flush(kPatience));
  EXPECT_EQ(telemetry.counts().exported, 5u);
  EXPECT_EQ(counts_of(telemetry, Signal::kLogs).exported, 1u);
  telemetry.shutdown();
  expect_spans_add_up(telemetry);
}

TEST(TelemetryLife, FlushAndShutdownDeliverMetricsToo) {
  TestReceiver receiver([](int) {
    std::this_thread::sleep_for(20ms);  // or delivery is over before anyone could forget to wait for it
    return http_answer("200 OK");
  });
  for (const auto interval : {std::chrono::milliseconds(1h), 1ms}) {
    TelemetryOptions options = sending_to(receiver);
    options.pipeline.metric_interval = interval;
    Telemetry& telemetry = Telemetry::init(options);
    telemetry.meter()->create_counter<std::int64_t>("test.steps").add(1);
    EXPECT_TRUE(telemetry.force_flush(kPatience));
    const std::uint64_t flushed = counts_of(telemetry, Signal::kMetrics).exported;
    EXPECT_GE(flushed, 1u);
    telemetry.shutdown(kPatience);
    EXPECT_GT(counts_of(telemetry, Signal::kMetrics).exported, flushed);
    if (interval == 1h) {
      EXPECT_EQ(receiver.num_requests(), 2);
    }
    expect_spans_add_up(telemetry);
  }
}

// lens.md section 15, A1.
TEST(TelemetryLife, ShutdownIsBoundedWhenTheReceiverHangs) {
  testing::internal::CaptureStderr();
  const TestReceiver hanging(nullptr);
  Telemetry& telemetry = Telemetry::init(sending_to(hanging));
  record_spans(2000);
  for (int i = 0; i < 5; ++i) Logger("test").info("text");
  const auto start = std::chrono::steady_clock::now();
  telemetry.shutdown(200ms);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("of 2000 spans 0 were overwritten, 0 refused, 2000 not exported"));
  EXPECT_THAT(said, HasSubstr("and 5 log records were not exported"));
  EXPECT_THAT(said, testing::Not(HasSubstr("left behind")));
  EXPECT_EQ(counts_of(telemetry, Signal::kLogs).failed, 5u);
  expect_spans_add_up(telemetry);
}

TEST(TelemetryLife, SpansOverwrittenWhileAnExporterSleepsAreCounted) {
  testing::internal::CaptureStderr();
  auto exporter = std::make_shared<GatedExporter>();
  TelemetryOptions options{.groups = kEveryGroup, .ring_records = 64};
  options.pipeline = {.exporters = {exporter}, .local_interval = 0ms};
  Telemetry& telemetry = Telemetry::init(options);
  record_spans(1);
  exporter->gate.wait_for_someone();
  record_spans(1000);
  exporter->gate.open();
  telemetry.shutdown(kPatience);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("of 1001 spans 936 were overwritten"));
  EXPECT_EQ(exporter->spans().size(), 65u);
  EXPECT_EQ(telemetry.counts().overwritten, 936u);
  expect_spans_add_up(telemetry);
}

TEST(TelemetryLife, WhatAHangingExporterHoldsIsCountedAsFailed) {
  testing::internal::CaptureStderr();
  auto exporter = std::make_shared<GatedExporter>();
  TelemetryOptions options{.groups = kEveryGroup, .collects_logs = true};
  options.pipeline = {.exporters = {exporter}, .local_interval = 0ms};
  Telemetry& telemetry = Telemetry::init(options);
  record_spans(1);
  exporter->gate.wait_for_someone();
  record_spans(9);
  Logger("test").info("text");
  EXPECT_FALSE(telemetry.force_flush(10ms));
  telemetry.shutdown(10ms);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("left behind"));
  EXPECT_THAT(said, HasSubstr("of 10 spans 0 were overwritten, 0 refused, 10 not exported"));
  EXPECT_THAT(said, HasSubstr("0 metric points and 1 log records"));
  expect_spans_add_up(telemetry);
  exporter->gate.open();
}

TEST(TelemetryLife, LogRecordsPushedOutOfTheirQueueAreCounted) {
  testing::internal::CaptureStderr();
  auto exporter = std::make_shared<GatedExporter>();
  TelemetryOptions options{.groups = kEveryGroup, .collects_logs = true};
  options.log_options = {.capacity = 10, .rate_per_second = 0};
  options.pipeline = {.exporters = {exporter}, .local_interval = 0ms};
  Telemetry& telemetry = Telemetry::init(options);
  record_spans(1);
  exporter->gate.wait_for_someone();
  for (int i = 0; i < 100; ++i) Logger("test").info("text");
  exporter->gate.open();
  telemetry.shutdown(kPatience);
  EXPECT_EQ(exporter->logs().size(), 10u);
  EXPECT_EQ(counts_of(telemetry, Signal::kLogs).exported, 10u);
  EXPECT_EQ(counts_of(telemetry, Signal::kLogs).dropped, 90u);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("90 log records were not exported"));
}

struct HopelessExporter : Exporter {
  std::string name() const override { throw std::runtime_error("not even a name"); }
  void export_spans(const std::vector<SpanData>&, const Resource&) override { throw std::runtime_error("no room"); }
};

TEST(TelemetryLife, EndOfTheExporterThreadIsNotThatOfTheProcess) {
  testing::internal::CaptureStderr();
  Telemetry& telemetry =
      Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {std::make_shared<HopelessExporter>()}}});
  record_spans(3);
  EXPECT_FALSE(telemetry.force_flush(kPatience));
  EXPECT_FALSE(is_span_group_enabled(Group::kStep));
  EXPECT_FALSE(telemetry.force_flush(kPatience));
  telemetry.shutdown(kPatience);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("telemetry: the exporter thread ends: not even a name"));
  EXPECT_THAT(said, HasSubstr("of 3 spans 0 were overwritten, 0 refused, 3 not exported"));
  expect_spans_add_up(telemetry);
}

TEST(TelemetryLife, SecondShutdownWaitsForTheFirst) {
  auto exporter = std::make_shared<GatedExporter>();
  Telemetry& telemetry = Telemetry::init({.groups = kEveryGroup, .pipeline = {.exporters = {exporter}}});
  record_spans(2);
  std::thread first([&telemetry] { telemetry.shutdown(kPatience); });
  exporter->gate.wait_for_someone();
  std::thread opener([&exporter] { exporter->gate.open(); });
  telemetry.shutdown();
  EXPECT_EQ(telemetry.counts().exported, 2u);
  first.join();
  opener.join();
}

// lens.md sections 2.5 and 15, A11: nothing of the parent is exported, nothing is waited for.
TEST(TelemetryLife, ForkedChildRestsWhateverItsParentHolds) {
  TestReceiver receiver([](int) { return http_answer("200 OK"); });
  TelemetryOptions options = sending_to(receiver);
  options.handles_signals = true;
  Telemetry& telemetry = Telemetry::init(options);
  const auto counter = telemetry.meter()->create_counter<std::int64_t>("test.steps");
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;  // that hold the locks now and then, also while others fork
  threads.emplace_back([&] {
    while (!stop) counter.add(1);
  });
  threads.emplace_back([&] {
    while (!stop) Logger("test").info("text");
  });
  threads.emplace_back([&] {
    while (!stop) record_spans(1);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a deadlock ends the child by SIGALRM
      counter.add(1);
      Logger("test").info("text");
      record_spans(1);
      const bool rests = Telemetry::get() == nullptr && telemetry.force_flush(1h);
      telemetry.shutdown(1h);
      _exit(rests ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Telemetry::get(), &telemetry);
  telemetry.shutdown(kPatience);
  const TelemetryCounts counts = telemetry.counts();
  EXPECT_EQ(counts.recorded, counts.exported + counts.overwritten + counts.failed_exports);
}

}  // namespace
}  // namespace pharos::lens
