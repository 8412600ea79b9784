// Failing spans: lens.md section 5.2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>

#include "pharos/lens/span.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

struct StopRequested : Interrupt {};

/// How an exception can leave a span, and what the span then says.
TEST(SpanError, StatusAndEventOfEveryPrimitive) {
  struct Case {
    const char* name;
    std::function<void()> run;
    StatusCode status;
    const char* description;
    std::size_t num_events;
  };
  const auto throws = [] { throw std::runtime_error("boom"); };
  const auto throws_empty = [] { throw std::runtime_error(""); };
  const auto stops = [] { throw StopRequested(); };
  const Case kCases[] = {
      {"managed", [&] { with_span(managed_span(Group::kStep, "managed"), throws); }, StatusCode::kError, "boom", 1},
      {"managed.empty", [&] { with_span(managed_span(Group::kStep, "managed.empty"), throws_empty); },
       StatusCode::kError, "", 1},
      {"cm", [&] { with_span(span_cm("cm"), throws); }, StatusCode::kError, "std::runtime_error: boom", 1},
      {"cm.empty", [&] { with_span(span_cm("cm.empty"), throws_empty); }, StatusCode::kError,
       "std::runtime_error: ", 1},
      {"cm.quiet", [&] { with_span(span_cm("cm.quiet"), throws, false); }, StatusCode::kError,
       "std::runtime_error: boom", 0},
      {"traced", [&] { traced(Group::kStep, "traced", throws); }, StatusCode::kError, "std::runtime_error: boom", 1},
      {"managed.stop", [&] { with_span(managed_span(Group::kStep, "managed.stop"), stops); }, StatusCode::kUnset, "",
       0},
      {"cm.stop", [&] { with_span(span_cm("cm.stop"), stops); }, StatusCode::kUnset, "", 0},
      {"traced.stop", [&] { traced(Group::kStep, "traced.stop", stops); }, StatusCode::kUnset, "", 0},
      {"scope",
       [&] {
         PHAROS_SPAN(span, Group::kStep, "scope");
         throws();
       },
       StatusCode::kError, "exception in flight", 0},
      {"scope.stop",
       [&] {
         PHAROS_SPAN(span, Group::kStep, "scope.stop");
         stops();
       },
       StatusCode::kUnset, "", 0},
      {"scope.foreign",
       [&] {
         PHAROS_SPAN(span, Group::kStep, "scope.foreign");
         throw 7;
       },
       StatusCode::kError, "exception in flight", 0},
      {"named", [&] { managed_span(Group::kStep, "named").record_exception("ValueError", "bad"); }, StatusCode::kError,
       "bad", 1},
      {"cm.named", [&] { span_cm("cm.named").record_exception("ValueError", "bad"); }, StatusCode::kError,
       "ValueError: bad", 1},
      {"cm.named.quiet", [&] { span_cm("cm.named.quiet").record_exception("ValueError", "bad", false); },
       StatusCode::kError, "ValueError: bad", 0},
      {"lens.message",
       [&] {
         StartOptions options;
         options.error_style = ErrorStyle::kMessage;
         start_span(Group::kStep, "lens.message", options).record_exception("E", "bad");
       },
       StatusCode::kError, "bad", 1},
  };
  MemoryTelemetry memory;
  for (const Case& item : kCases) {
    try {
      item.run();
    } catch (...) {
      EXPECT_FALSE(current_context()) << item.name;
    }
  }
  for (const Case& item : kCases) {
    const SpanData span = memory.span(item.name);
    EXPECT_EQ(span.status, item.status) << item.name;
    EXPECT_EQ(span.status_description, item.description) << item.name;
    EXPECT_EQ(span.events.size(), item.num_events) << item.name;
  }
}

TEST(SpanError, GivenTypeIsTheOneOfTheEvent) {
  MemoryTelemetry memory;
  span_cm("test.span").record_exception("ValueError", "bad value");
  const SpanData span = memory.span("test.span");
  ASSERT_EQ(span.events.size(), 1u);
  EXPECT_EQ(span.events[0].attributes[0].second, StoredValue(std::string("ValueError")));
  EXPECT_EQ(span.events[0].attributes[1].second, StoredValue(std::string("bad value")));
}

TEST(SpanError, WithSpanReturnsWhatTheFunctionReturnsAndGivesItTheSpan) {
  MemoryTelemetry memory;
  int value = 0;
  int& reference = with_span(managed_span(Group::kStep, "test.reference"), [&]() -> int& { return value; });
  EXPECT_EQ(&reference, &value);
  EXPECT_EQ(with_span(span_cm("test.span"),
                      [](ManagedSpan& span) {
                        span.set("inside", true);
                        EXPECT_EQ(current_context(), span.context());
                        return 7;
                      }),
            7);
  EXPECT_EQ(attribute(memory.span("test.span"), "inside"), StoredValue(true));
  EXPECT_EQ(memory.spans().size(), 2u);
}

TEST(SpanError, OkIsFinalAndEventsAreStillAdded) {
  MemoryTelemetry memory;
  {
    SpanScope span = span_cm("test.ok");
    span.fail("early");
    span.set_ok();
    span.record_exception(std::runtime_error("late"));
    span.fail("later");
  }
  const SpanData span = memory.span("test.ok");
  EXPECT_EQ(span.status, StatusCode::kOk);
  EXPECT_EQ(span.status_description, "");
  EXPECT_EQ(span.events.size(), 1u);
}

TEST(SpanError, AnInterruptExcusesOnlyItsOwnThreadAndOnlyWhileItLives) {
  MemoryTelemetry memory;
  std::exception_ptr kept;
  try {
    throw StopRequested();
  } catch (const Interrupt& interrupt) {
    EXPECT_STREQ(interrupt.what(), "interrupted");
    EXPECT_TRUE(is_interrupted());
    std::thread([] { EXPECT_FALSE(is_interrupted()); }).join();
    kept = std::current_exception();
  }
  EXPECT_TRUE(is_interrupted());
  std::thread([&kept] { kept = nullptr; }).join();  // ends in another thread than it began
  EXPECT_FALSE(is_interrupted());
  try {
    PHAROS_SPAN(span, Group::kStep, "test.after");
    throw std::runtime_error("real");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(memory.span("test.after").status, StatusCode::kError);
  {
    StopRequested first;
    StopRequested second;
    second = first;
    const StopRequested third = second;
    EXPECT_TRUE(is_interrupted());
  }
  EXPECT_FALSE(is_interrupted());
}

TEST(SpanError, EventsHaveNamesTimesAndAttributes) {
  MemoryTelemetry memory;
  {
    PHAROS_SPAN(span, Group::kStep, "test.span");
    span.add_event("first");
    span.add_event("second", {{"n", 1}, {"token", "t"}, {"", 2}, {"none", {}}, {"list", std::vector<double>{0.5}}}, 42);
  }
  const SpanData span = memory.span("test.span");
  ASSERT_EQ(span.events.size(), 2u);
  EXPECT_EQ(span.events[0].name, "first");
  EXPECT_GE(span.events[0].time_ns, span.start_ns);
  EXPECT_LE(span.events[0].time_ns, span.end_ns);
  EXPECT_EQ(span.events[1].time_ns, 42);
  const StoredAttributes expected = {
      {"n", std::int64_t{1}}, {"token", std::string("[REDACTED]")}, {"list", std::vector<double>{0.5}}};
  EXPECT_EQ(span.events[1].attributes, expected);
  EXPECT_EQ(span.status, StatusCode::kUnset);
}

}  // namespace
}  // namespace pharos::lens
