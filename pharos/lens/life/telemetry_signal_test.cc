// SIGTERM and SIGINT while telemetry runs: spans are flushed, then the signal does what it would have done anyway
// (megatron-telemetry.md section 1.10). Each case happens in a child process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "pharos/base/file.h"
#include "pharos/lens/life/signal_hook.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/span.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

using namespace std::chrono_literals;

/// Wait status of a child that does `body`, and then ends with status 99.
int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a child that hangs ends by SIGALRM
    body();
    _exit(99);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

void expect_ended_by(int status, int signal) {
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), signal);
}

void expect_exit(int status, int code) {
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), code);
}

[[noreturn]] void wait_for_the_end() {
  while (true) pause();
}

void set_handler(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

auto handler_of(int signal) {
  struct sigaction action = {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

class TelemetrySignal : public testing::Test {
 protected:
  TelemetryOptions options() const {
    TelemetryOptions options{.groups = kEveryGroup, .run_folder = folder_.path(), .file_exporter = true};
    options.handles_signals = true;
    options.pipeline.local_interval = 1h;  // nothing is written unless it is flushed
    return options;
  }
  std::size_t num_lines() const {
    const std::filesystem::path path = folder_.path() / "trace/spans.jsonl";
    if (!std::filesystem::exists(path)) return 0;
    const std::string text = base::read_file(path);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  const TemporaryFolder folder_;
};

TEST_F(TelemetrySignal, FlushesAndPassesOn) {
  std::size_t num_expected = 0;
  for (const int signal : {SIGTERM, SIGINT}) {
    const int status = status_of_child([&] {
      Telemetry::init(options());
      PHAROS_SPAN(open, Group::kJob, "test.open");
      managed_span(Group::kStep, "test.step").end();
      kill(getpid(), signal);
      wait_for_the_end();
    });
    expect_ended_by(status, signal);
    EXPECT_EQ(num_lines(), num_expected += 2) << strsignal(signal);
  }
}

TEST_F(TelemetrySignal, HandlerOfTheProgramIsCalledAfterTheFlush) {
  const int status = status_of_child([&] {
    set_handler(SIGTERM, [](int signal) { _exit(signal == SIGTERM && Telemetry::get() == nullptr ? 7 : 8); });
    Telemetry::init(options());
    managed_span(Group::kStep, "test.step").end();
    kill(getpid(), SIGTERM);
    wait_for_the_end();
  });
  expect_exit(status, 7);
  EXPECT_EQ(num_lines(), 1u);
}

TEST_F(TelemetrySignal, IgnoredStaysIgnored) {
  const int status = status_of_child([&] {
    set_handler(SIGTERM, SIG_IGN);
    Telemetry& telemetry = Telemetry::init(options());
    if (handler_of(SIGTERM) != SIG_IGN) _exit(1);
    kill(getpid(), SIGTERM);
    managed_span(Group::kStep, "test.step").end();
    if (Telemetry::get() != &telemetry) _exit(2);
    telemetry.shutdown();
    _exit(handler_of(SIGTERM) == SIG_IGN ? 0 : 3);
  });
  expect_exit(status, 0);
  EXPECT_EQ(num_lines(), 1u);
}

void do_nothing(int) {}
void exit_with_5(int) { _exit(5); }

TEST_F(TelemetrySignal, ShutdownRestoresHandlers) {
  const int status = status_of_child([&] {
    set_handler(SIGTERM, &do_nothing);
    for (int life = 0; life < 2; ++life) {
      Telemetry& telemetry = Telemetry::init(options());
      if (handler_of(SIGTERM) == &do_nothing || handler_of(SIGINT) == SIG_DFL) _exit(1);
      telemetry.shutdown();
      if (handler_of(SIGTERM) != &do_nothing || handler_of(SIGINT) != SIG_DFL) _exit(2);
    }
    _exit(0);
  });
  expect_exit(status, 0);
}

TEST_F(TelemetrySignal, HandlerOfALaterDateIsNotOverwritten) {
  const int status = status_of_child([&] {
    Telemetry& telemetry = Telemetry::init(options());
    set_handler(SIGTERM, &exit_with_5);
    telemetry.shutdown();
    if (handler_of(SIGTERM) != &exit_with_5) _exit(1);
    raise(SIGTERM);
  });
  expect_exit(status, 5);
}

decltype(sigaction::sa_sigaction) kept_handler = nullptr;

/// Puts a handler of the program before the one that is there, which it calls.
void chain_before(int signal) {
  struct sigaction before = {};
  sigaction(signal, nullptr, &before);
  kept_handler = before.sa_sigaction;
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int number, siginfo_t* info, void* context) { kept_handler(number, info, context); };
  sigaction(signal, &action, nullptr);
}

// A later handler that calls ours: spans are flushed; the signal that is passed on finds that handler, and through it
// what was there before.
TEST_F(TelemetrySignal, ChainedHandlerFlushesAndReachesWhatWasThereBefore) {
  const int status = status_of_child([&] {
    Telemetry::init(options());
    chain_before(SIGTERM);
    managed_span(Group::kStep, "test.step").end();
    kill(getpid(), SIGTERM);
    wait_for_the_end();
  });
  expect_ended_by(status, SIGTERM);
  EXPECT_EQ(num_lines(), 1u);
}

TEST_F(TelemetrySignal, ChainedHandlerAfterShutdownIsNotSwallowed) {
  for (const bool has_own : {false, true}) {
    const int status = status_of_child([&] {
      if (has_own) set_handler(SIGTERM, &exit_with_5);
      Telemetry& telemetry = Telemetry::init(options());
      chain_before(SIGTERM);
      telemetry.shutdown();
      raise(SIGTERM);
      wait_for_the_end();
    });
    has_own ? expect_exit(status, 5) : expect_ended_by(status, SIGTERM);
  }
}

struct HangingExporter : Exporter {
  std::string name() const override { return "hanging"; }
  void export_spans(const std::vector<SpanData>&, const Resource&) override { wait_for_the_end(); }
};

TEST_F(TelemetrySignal, ExporterThatHangsDoesNotHoldASignalUp) {
  const int status = status_of_child([&] {
    TelemetryOptions hanging = options();
    hanging.pipeline.exporters = {std::make_shared<HangingExporter>()};
    Telemetry& telemetry = Telemetry::init(hanging);
    managed_span(Group::kStep, "test.step").end();
    telemetry.force_flush(100ms);
    kill(getpid(), SIGTERM);
    wait_for_the_end();
  });
  expect_ended_by(status, SIGTERM);
}

TEST_F(TelemetrySignal, ForkedChildEndsByItself) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer delivers no signals to handlers in the child of a process with threads";
#endif
  const int status = status_of_child([&] {
    set_handler(SIGINT, &exit_with_5);
    Telemetry& telemetry = Telemetry::init(options());
    const int by_default = status_of_child([] {
      raise(SIGTERM);
      wait_for_the_end();
    });
    const int by_handler = status_of_child([] {
      raise(SIGINT);
      wait_for_the_end();
    });
    const bool is_as_before = WIFSIGNALED(by_default) && WTERMSIG(by_default) == SIGTERM && WIFEXITED(by_handler) &&
                              WEXITSTATUS(by_handler) == 5;
    _exit(is_as_before && Telemetry::get() == &telemetry ? 0 : 1);
  });
  expect_exit(status, 0);
}

TEST_F(TelemetrySignal, WithoutHandlersTheProcessIsAsEver) {
  const int status = status_of_child([&] {
    TelemetryOptions quiet = options();
    quiet.handles_signals = false;
    Telemetry::init(quiet);
    if (handler_of(SIGTERM) != SIG_DFL || handler_of(SIGINT) != SIG_DFL) _exit(1);
    kill(getpid(), SIGTERM);
    wait_for_the_end();
  });
  expect_ended_by(status, SIGTERM);
}

TEST_F(TelemetrySignal, ExitFlushesToo) {
  const int status = status_of_child([&] {
    Telemetry::init(options());
    managed_span(Group::kStep, "test.step").end();
    std::exit(3);
  });
  expect_exit(status, 3);
  EXPECT_EQ(num_lines(), 1u);
}

}  // namespace
}  // namespace pharos::lens
