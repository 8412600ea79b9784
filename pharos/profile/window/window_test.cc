// Which calls a profiler and NVTX get, against the steps they belong to.
#include "pharos/profile/window/window.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/text.h"
#include "pharos/lens/test_support.h"

namespace pharos::profile {
namespace {

/// Calls in their order; lives as long as the process, as window.h asks.
std::vector<std::string>& calls() {
  static auto& kCalls = *new std::vector<std::string>;
  return kCalls;
}

class FakeProfiler : public Profiler {
 public:
  explicit FakeProfiler(std::string failure = "") : failure_(std::move(failure)) {}
  std::string start() override {
    calls().emplace_back("start");
    return failure_;
  }
  std::string stop() override {
    calls().emplace_back("stop");
    return "";
  }

 private:
  std::string failure_;
};

class FakeRanges : public lens::SpanMarkers {
 public:
  void push(const char* name) override { calls().push_back(std::string("+") + name); }
  void pop() override { calls().emplace_back("-"); }
};

FakeRanges& ranges() {
  static auto& kRanges = *new FakeRanges;
  return kRanges;
}

config::ProfilingConfig window_config(std::int64_t start, std::int64_t end) {
  config::ProfilingConfig config;
  config.use_nsys_profiler = true;
  config.profile_step_start = start;
  config.profile_step_end = end;
  return config;
}

class WindowTest : public testing::Test {
 protected:
  WindowTest() { calls().clear(); }

  /// Without operators' ranges: a null pointer stands for libraries that are missing.
  Window::Tools without_ranges() { return {.profiler = std::make_unique<FakeProfiler>()}; }

  std::vector<std::string> said_;
  Window::Say say_ = [this](const std::string& line) { said_.push_back(line); };
};

/// The loop of a process that begins after `first` steps and leaves after `last`: "1 2 start 3 4 stop 5".
std::string calls_of_run(Window& window, std::int64_t first, std::int64_t last) {
  calls().clear();
  for (std::int64_t step = first; step < last; ++step) {
    window.before_step(step);
    calls().push_back(std::to_string(step + 1));
    window.after_step(step + 1);
  }
  window.leave();
  return base::join(calls(), " ");
}

TEST_F(WindowTest, CapturesCompletedStepsHalfOpen) {
  struct Case {
    std::int64_t start, end;
    std::vector<std::int64_t> ranks;
    std::int64_t rank, first, last;
    const char* calls;
  };
  const Case kCases[] = {
      {2, 4, {0}, 0, 0, 6, "1 2 start 3 4 stop 5 6"},
      {0, 1, {0}, 0, 0, 3, "start 1 stop 2 3"},
      {2, 4, {0}, 1, 0, 5, "1 2 3 4 5"},
      {2, 4, {0, 1}, 1, 0, 5, "1 2 start 3 4 stop 5"},
      {2, 4, {}, 7, 0, 5, "1 2 start 3 4 stop 5"},
      {2, 2, {0}, 0, 0, 4, "1 2 3 4"},
      {2, 6, {0}, 0, 4, 8, "start 5 6 stop 7 8"},  // resumed inside
      {2, 6, {0}, 0, 6, 8, "7 8"},                 // … at its end
      {2, 6, {0}, 0, 7, 9, "8 9"},                 // … beyond it
      {2, 6, {0}, 0, 0, 4, "1 2 start 3 4 stop"},  // left inside
      {2, 6, {0}, 0, 0, 6, "1 2 start 3 4 5 6 stop"},
      {9, 12, {0}, 0, 0, 4, "1 2 3 4"},  // never reached
  };
  for (const Case& each : kCases) {
    config::ProfilingConfig config = window_config(each.start, each.end);
    config.profile_ranks = each.ranks;
    Window window(config, each.rank, say_, [&] { return without_ranges(); });
    EXPECT_EQ(calls_of_run(window, each.first, each.last), each.calls)
        << "[" << each.start << ", " << each.end << ") of rank " << each.rank << ", steps after " << each.first;
  }
}

TEST_F(WindowTest, StepsThatAreSkippedCloseItToo) {
  Window window(window_config(1, 3), 0, say_, [&] { return without_ranges(); });
  window.before_step(1);
  window.after_step(2);
  window.before_step(5);  // 3 to 5 were skipped
  EXPECT_THAT(calls(), testing::ElementsAre("start", "stop"));
  window.before_step(6);
  EXPECT_EQ(calls().size(), 2u);
}

TEST_F(WindowTest, AnExceptionClosesIt) {
  try {
    Window window(window_config(0, 9), 0, say_, [&] { return without_ranges(); });
    window.before_step(0);
    throw std::runtime_error("the loss is not finite");
  } catch (const std::runtime_error&) {
    calls().emplace_back("caught");
  }
  EXPECT_THAT(calls(), testing::ElementsAre("start", "stop", "caught"));
  EXPECT_THAT(said_.back(), testing::HasSubstr("early, after step 0 of 9"));
}

TEST_F(WindowTest, SaysOnceThatTheRunResumedBeyondIt) {
  Window window(window_config(2, 4), 0, say_, [&] { return without_ranges(); });
  said_.clear();
  calls_of_run(window, 6, 9);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], testing::HasSubstr("nothing is captured, the run continues at step 6"));
}

TEST_F(WindowTest, SaysOnceThatTheRunEndedBeforeIt) {
  {
    Window window(window_config(9, 12), 0, say_, [&] { return without_ranges(); });
    said_.clear();
    calls_of_run(window, 0, 4);
  }
  EXPECT_THAT(said_, testing::ElementsAre(testing::HasSubstr("nothing is captured, the run ended without a step of")));
}

TEST_F(WindowTest, WithoutCudaItSaysSoAndTheRunGoesOn) {
  Window window(window_config(0, 4), 0, say_, [] { return Window::Tools{.why_not = "libcudart was not found"}; });
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], testing::HasSubstr("profiling.use_nsys_profiler has no effect"));
  EXPECT_THAT(said_[0], testing::HasSubstr("libcudart was not found"));
  EXPECT_EQ(calls_of_run(window, 0, 6), "1 2 3 4 5 6");
  EXPECT_EQ(said_.size(), 1u);
}

TEST_F(WindowTest, IsSilentWhereNobodyAsked) {
  const auto never = []() -> Window::Tools { throw std::logic_error("looked for libraries"); };
  config::ProfilingConfig off = window_config(0, 4);
  off.use_nsys_profiler = false;
  Window not_wanted(off, 0, say_, never);
  Window other_rank(window_config(0, 4), 3, say_, never);
  calls_of_run(not_wanted, 0, 6);
  calls_of_run(other_rank, 0, 6);
  EXPECT_TRUE(said_.empty());
}

TEST_F(WindowTest, AProfilerThatFailsIsNotStopped) {
  Window window(window_config(1, 3), 0, say_,
                [] { return Window::Tools{.profiler = std::make_unique<FakeProfiler>("no device (100)")}; });
  EXPECT_EQ(calls_of_run(window, 0, 4), "1 start 2 3 4");
  EXPECT_THAT(said_.back(), testing::HasSubstr("no device (100)"));
}

class NvtxTest : public WindowTest {
 protected:
  Window::Tools tools() { return {.profiler = std::make_unique<FakeProfiler>(), .ranges = &ranges()}; }
};

TEST_F(NvtxTest, ShowsStepsAndSpansWhileItIsOpen) {
  lens::MemoryTelemetry telemetry;
  config::ProfilingConfig config = window_config(1, 2);
  config.nvtx_ranges = true;
  Window window(config, 0, say_, [&] { return tools(); });
  lens::ManagedSpan around = lens::managed_span(lens::Group::kJob, "around");
  for (std::int64_t step = 0; step < 3; ++step) {
    window.before_step(step);
    PHAROS_SPAN(iteration, lens::Group::kStep, "iteration");
    { PHAROS_SPAN(optimizer, lens::Group::kOptimizer, "optimizer"); }
    lens::StartOptions beside;
    beside.make_current = false;
    lens::ManagedSpan transfer = lens::start_span(lens::Group::kStep, "transfer", beside);
    iteration.end();
    window.after_step(step + 1);
  }
  around.end();
  EXPECT_THAT(calls(),
              testing::ElementsAre("start", "+training_step_2", "+iteration", "+optimizer", "-", "-", "-", "stop"));
}

/// A range that its span leaves open ends with the range around it, and none is popped twice.
TEST_F(NvtxTest, RangesStayNestedWhateverOrderSpansEndIn) {
  lens::MemoryTelemetry telemetry;
  lens::show_spans(&ranges());
  lens::ManagedSpan outer = lens::managed_span(lens::Group::kStep, "outer");
  lens::ManagedSpan inner = lens::managed_span(lens::Group::kStep, "inner");
  outer.end();
  inner.end();
  lens::ManagedSpan moved = lens::managed_span(lens::Group::kStep, "moved");
  std::thread([&] { lens::ManagedSpan(std::move(moved)).end(); }).join();
  lens::ManagedSpan open = lens::managed_span(lens::Group::kStep, "open");
  lens::show_spans(nullptr);
  open.end();
  lens::managed_span(lens::Group::kStep, "after").end();
  EXPECT_THAT(calls(), testing::ElementsAre("+outer", "+inner", "-", "-", "+moved", "+open", "-", "-"));
}

TEST_F(NvtxTest, ShowsOperatorsForwardAndBackward) {
  config::ProfilingConfig config = window_config(0, 1);
  config.record_shapes = true;
  Window window(config, 0, say_, [&] { return tools(); });
  const at::Tensor weight = at::ones({3, 2}).requires_grad_();
  window.before_step(0);
  at::ones({4, 3}).mm(weight).sum().backward();
  window.after_step(1);
  const std::vector<std::string> seen = calls();
  calls().clear();
  at::ones({2}).add(1);
  EXPECT_TRUE(calls().empty());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "-"),
            std::count_if(seen.begin(), seen.end(), [](const std::string& call) { return call.starts_with("+"); }));
  EXPECT_THAT(seen, testing::Contains(
                        testing::MatchesRegex("\\+aten::mm, seq = [0-9]+, sizes = \\[\\[4, 3\\], \\[3, 2\\]\\]")));
  EXPECT_THAT(seen, testing::Contains(testing::MatchesRegex("\\+.*MmBackward0, seq = .*")));
  EXPECT_EQ(seen.front(), "start");
  EXPECT_EQ(seen.back(), "stop");
}

}  // namespace
}  // namespace pharos::profile
