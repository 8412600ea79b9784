// The rules of lens.md section 5 that apply to C++.
#include "pharos/lens/span.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

TEST(Span, InactiveSitesWorkAndEvaluateNothing) {
  int evaluated = 0;
  PHAROS_SPAN(span, Group::kJob, "test.off", {"count", ++evaluated});
  EXPECT_FALSE(span);
  span.set("key", 1);
  span.fail("no");
  span.end();
  span.end();
  EXPECT_FALSE(managed_span(Group::kJob, "test.off"));
  EXPECT_FALSE(span_cm("test.off"));
  EXPECT_FALSE(start_span(Group::kJob, "test.off"));
  EXPECT_FALSE(record_span("test.off", Group::kJob, 1, 2, {}));
  EXPECT_FALSE(current_context());
  const AttachedContext attached(CapturedContext(SpanContext{1, 2, 3}));
  EXPECT_FALSE(current_context());
  EXPECT_EQ(traced(Group::kJob, "test.off", [] { return 7; }), 7);
  EXPECT_EQ(evaluated, 0);
  EXPECT_EQ(Telemetry::get(), nullptr);
}

TEST(Span, DisabledGroupEvaluatesNothingAndLeavesTheContext) {
  MemoryTelemetry memory(group_bit(Group::kJob) | group_bit(Group::kLayer));
  int evaluated = 0;
  {
    PHAROS_SPAN(outer, Group::kJob, "test.outer", {"count", ++evaluated});
    PHAROS_SPAN(middle, Group::kStep, "test.middle", {"count", ++evaluated});
    EXPECT_TRUE(outer);
    EXPECT_FALSE(middle);
    EXPECT_EQ(current_context(), outer.context());
    // The child re-parents to the nearest enabled ancestor.
    PHAROS_SPAN(inner, Group::kLayer, "test.inner");
    EXPECT_EQ(current_context(), inner.context());
  }
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(memory.spans().size(), 2u);
  EXPECT_EQ(memory.span("test.inner").parent_span_id, memory.span("test.outer").context.span_id);
}

TEST(Span, NestingGivesParentsAndOneTrace) {
  MemoryTelemetry memory;
  {
    PHAROS_SPAN(first, Group::kStep, "test.first");
    { PHAROS_SPAN(child, Group::kStep, "test.child"); }
    PHAROS_SPAN(sibling, Group::kStep, "test.sibling");
  }
  PHAROS_SPAN(other, Group::kStep, "test.other");
  other.end();
  const SpanData first = memory.span("test.first");
  const SpanData child = memory.span("test.child");
  const SpanData sibling = memory.span("test.sibling");
  EXPECT_EQ(first.parent_span_id, 0u);
  EXPECT_EQ(child.parent_span_id, first.context.span_id);
  EXPECT_EQ(sibling.parent_span_id, first.context.span_id);
  EXPECT_EQ(child.context.trace_id_low, first.context.trace_id_low);
  EXPECT_NE(memory.span("test.other").context.trace_id_low, first.context.trace_id_low);
  EXPECT_LE(first.start_ns, child.start_ns);
  EXPECT_LE(child.end_ns, sibling.start_ns);
  EXPECT_LE(sibling.end_ns, first.end_ns);
  EXPECT_EQ(first.group, Group::kStep);
  EXPECT_EQ(first.status, StatusCode::kUnset);
}

TEST(Span, AttributesOfEveryTypeComeBack) {
  MemoryTelemetry memory;
  const std::string text = "abc";
  const std::vector<std::int64_t> list = {1, -2, 3};
  {
    PHAROS_SPAN(span, Group::kStep, "test.span", {"bool", true}, {"int", -5}, {"text", text}, {kGoodput, true});
    span.set("double", 0.5);
    span.set("list", list);
    span.set("empty list", std::vector<std::int64_t>{});
    span.set("int", 6);            // replaced
    span.set("bool", "now text");  // of another type
    span.set("", 1);               // an empty key is dropped
    span.set("none", AttributeValue());
    span.set("large", std::int64_t{1} << 62);
    span.set("label", "");
  }
  const SpanData span = memory.span("test.span");
  EXPECT_EQ(attribute(span, "bool"), StoredValue(std::string("now text")));
  EXPECT_EQ(attribute(span, "int"), StoredValue(std::int64_t{6}));
  EXPECT_EQ(attribute(span, "text"), StoredValue(std::string("[REDACTED]")));  // a key of the default redaction set
  EXPECT_EQ(attribute(span, "double"), StoredValue(0.5));
  EXPECT_EQ(attribute(span, "list"), StoredValue(list));
  EXPECT_EQ(attribute(span, "empty list"), StoredValue(std::vector<std::int64_t>{}));
  EXPECT_EQ(attribute(span, "large"), StoredValue(std::int64_t{1} << 62));
  EXPECT_EQ(attribute(span, "label"), StoredValue(std::string()));
  EXPECT_EQ(attribute(span, "is_goodput_span"), StoredValue(true));
  EXPECT_EQ(span.attributes.size(), 9u);
  EXPECT_EQ(span.num_dropped_attributes, 0u);
}

TEST(Span, RedactionHitsOnlyTextOfTheKeysInAnyCase) {
  MemoryTelemetry memory;
  {
    PHAROS_SPAN(span, Group::kStep, "test.span", {"prompt", "p"}, {"token", 3}, {"Token", "x"}, {"tokens", "y"});
    for (const char* key : {"input_text", "output_text", "password", "secret", "key"}) span.set(key, "z");
  }
  const SpanData span = memory.span("test.span");
  const StoredValue redacted = std::string("[REDACTED]");
  for (const char* key : {"prompt", "input_text", "output_text", "password", "secret", "key"}) {
    EXPECT_EQ(attribute(span, key), redacted) << key;
  }
  EXPECT_EQ(attribute(span, "token"), StoredValue(std::int64_t{3}));
  EXPECT_EQ(attribute(span, "Token"), redacted);
  EXPECT_EQ(attribute(span, "tokens"), StoredValue(std::string("y")));
}

TEST(Span, ExceptionInFlightMarksTheScopeAsFailed) {
  MemoryTelemetry memory;
  try {
    PHAROS_SPAN(outer, Group::kStep, "test.outer");
    PHAROS_SPAN(inner, Group::kStep, "test.inner");
    throw std::runtime_error("lost");
  } catch (const std::runtime_error&) {
    // Not in flight any more.
    PHAROS_SPAN(handler, Group::kStep, "test.handler");
  }
  for (const char* name : {"test.outer", "test.inner"}) {
    EXPECT_EQ(memory.span(name).status, StatusCode::kError) << name;
    EXPECT_EQ(memory.span(name).status_description, "exception in flight");
  }
  EXPECT_EQ(memory.span("test.handler").status, StatusCode::kUnset);
  EXPECT_FALSE(current_context());
}

struct RecordsWhileUnwinding {
  ~RecordsWhileUnwinding() { PHAROS_SPAN(span, Group::kStep, "test.cleanup"); }
};

TEST(Span, SpanStartedWhileUnwindingIsNotFailed) {
  MemoryTelemetry memory;
  try {
    const RecordsWhileUnwinding cleanup;
    throw std::runtime_error("lost");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(memory.span("test.cleanup").status, StatusCode::kUnset);
}

TEST(Span, TracedRecordsTypeAndTextAndPassesOn) {
  MemoryTelemetry memory(group_bit(Group::kStep));
  EXPECT_EQ(traced(Group::kStep, "test.value", [] { return std::string("result"); }), "result");
  EXPECT_THROW(traced(Group::kStep, "test.throws", []() -> int { throw std::out_of_range("beyond"); }),
               std::out_of_range);
  EXPECT_THROW(traced(Group::kLayer, "test.off", [] { throw std::out_of_range("beyond"); }), std::out_of_range);
  struct Foreign {};
  EXPECT_THROW(traced(Group::kStep, "test.foreign", [] { throw Foreign(); }), Foreign);
  EXPECT_EQ(memory.spans().size(), 3u);
  const SpanData span = memory.span("test.throws");
  EXPECT_EQ(span.scope, Scope::kLens);
  EXPECT_EQ(span.status, StatusCode::kError);
  EXPECT_EQ(span.status_description, "std::out_of_range: beyond");
  ASSERT_EQ(span.events.size(), 1u);
  EXPECT_EQ(span.events[0].name, "exception");
  const StoredAttributes& attributes = span.events[0].attributes;
  ASSERT_EQ(attributes.size(), 4u);
  EXPECT_EQ(attributes[0], (StoredAttributes::value_type{"exception.type", std::string("std::out_of_range")}));
  EXPECT_EQ(attributes[1], (StoredAttributes::value_type{"exception.message", std::string("beyond")}));
  EXPECT_EQ(attributes[2].first, "exception.stacktrace");
  EXPECT_THAT(std::get<std::string>(attributes[2].second), testing::HasSubstr("lens_test"));
  EXPECT_EQ(attributes[3], (StoredAttributes::value_type{"exception.escaped", std::string("False")}));
  EXPECT_EQ(memory.span("test.foreign").status, StatusCode::kError);
  EXPECT_TRUE(memory.span("test.foreign").events.empty());
}

TEST(Span, RecordedExceptionOfAManagedSpanIsDescribedByItsTextOnly) {
  MemoryTelemetry memory;
  {
    PHAROS_SPAN(span, Group::kStep, "test.short");
    span.record_exception(std::runtime_error("text"));
  }
  {
    SpanScope span = span_cm("test.ungated");
    span.record_exception(std::runtime_error(""));
  }
  EXPECT_EQ(memory.span("test.short").status_description, "text");
  EXPECT_EQ(memory.span("test.ungated").status_description, "std::runtime_error: ");
}

TEST(Span, UngatedSpansNeedActiveTelemetryOnly) {
  MemoryTelemetry memory(0);
  {
    SpanScope span = span_cm("test.cold", {"answer", 42});
    EXPECT_TRUE(span);
    EXPECT_FALSE(managed_span(Group::kJob, "test.gated"));
  }
  ASSERT_EQ(memory.spans().size(), 1u);
  EXPECT_TRUE(memory.span("test.cold").is_ungated);
  EXPECT_EQ(attribute(memory.span("test.cold"), "answer"), StoredValue(std::int64_t{42}));
}

int leave_early(bool early) {
  PHAROS_SPAN(span, Group::kStep, "test.early");
  if (early) return 1;
  span.set("late", true);
  return 2;
}

TEST(Span, EarlyReturnEndsTheSpan) {
  MemoryTelemetry memory;
  EXPECT_EQ(leave_early(true), 1);
  EXPECT_FALSE(current_context());
  EXPECT_EQ(attribute(memory.span("test.early"), "late"), StoredValue(std::string("absent")));
}

TEST(Span, MisuseIsHarmless) {
  MemoryTelemetry memory;
  PHAROS_SPAN(span, Group::kStep, "test.span");
  const SpanContext context = span.context();
  span.end();
  EXPECT_FALSE(span);
  span.set("late", 1);
  span.fail("late");
  span.add_link(context);
  span.end();
  EXPECT_EQ(span.context(), context);
  ManagedSpan& self = span;
  span = std::move(self);
  EXPECT_EQ(memory.spans().size(), 1u);
  EXPECT_TRUE(memory.span("test.span").attributes.empty());
  EXPECT_EQ(memory.span("test.span").status, StatusCode::kUnset);
}

TEST(Span, MovedSpanEndsOnceWhereItGoes) {
  MemoryTelemetry memory;
  std::optional<ManagedSpan> kept;
  {
    PHAROS_SPAN(span, Group::kStep, "test.moved");
    kept.emplace(std::move(span));
    EXPECT_FALSE(span);  // NOLINT: this is what is tested
  }
  EXPECT_TRUE(memory.spans().empty());
  EXPECT_EQ(current_context(), kept->context());
  *kept = managed_span(Group::kStep, "test.next");  // ends the first; the next was its child
  EXPECT_EQ(current_context(), kept->context());
  EXPECT_EQ(memory.spans().size(), 1u);
  const std::uint64_t first_id = memory.span("test.moved").context.span_id;
  kept.reset();
  EXPECT_FALSE(current_context());
  EXPECT_EQ(memory.span("test.next").parent_span_id, first_id);
}

TEST(Span, EndingOutOfOrderRestoresTheInnermostOpenSpan) {
  MemoryTelemetry memory;
  PHAROS_SPAN(first, Group::kStep, "test.first");
  PHAROS_SPAN(second, Group::kStep, "test.second");
  PHAROS_SPAN(third, Group::kStep, "test.third");
  second.end();
  EXPECT_EQ(current_context(), third.context());
  third.end();
  EXPECT_EQ(current_context(), first.context());
  first.end();
  EXPECT_FALSE(current_context());
}

TEST(Span, ThreadsStartWithoutContextAndCanCarryOne) {
  MemoryTelemetry memory;
  PHAROS_SPAN(parent, Group::kStep, "test.parent");
  const CapturedContext captured = CapturedContext::current();
  std::thread([] { PHAROS_SPAN(span, Group::kStep, "test.orphan"); }).join();
  std::thread([captured] {
    const AttachedContext attached(captured);
    PHAROS_SPAN(span, Group::kStep, "test.child");
  }).join();
  std::thread([] { EXPECT_FALSE(current_context()); }).join();
  EXPECT_EQ(memory.span("test.orphan").parent_span_id, 0u);
  EXPECT_EQ(memory.span("test.child").parent_span_id, parent.context().span_id);
  EXPECT_EQ(memory.span("test.child").context.trace_id_high, parent.context().trace_id_high);
}

TEST(Span, EndingInAnotherThreadFreesTheContextOfItsOwn) {
  MemoryTelemetry memory;
  for (int i = 0; i < 200; ++i) {  // more than there are slots: they come back
    ManagedSpan span = managed_span(Group::kStep, "test.remote");
    ASSERT_TRUE(span);
    std::thread([moved = std::move(span)]() mutable { moved.set("remote", true); }).join();
    EXPECT_FALSE(current_context());
  }
  EXPECT_EQ(memory.spans().size(), 200u);
  EXPECT_EQ(memory.telemetry().counts().refused, 0u);
}

TEST(Span, ManyOpenSpansAreRefusedAndCounted) {
  MemoryTelemetry memory;
  std::vector<ManagedSpan> spans;
  for (int i = 0; i < 70; ++i) spans.push_back(start_span(Group::kStep, "test.deep"));
  EXPECT_TRUE(spans[63]);
  EXPECT_FALSE(spans[64]);
  EXPECT_EQ(memory.telemetry().counts().refused, 6u);
  spans.clear();
  EXPECT_EQ(memory.spans().size(), 64u);
  EXPECT_TRUE(start_span(Group::kStep, "test.again"));
}

TEST(Span, ExplicitParentRootLinkAndTimes) {
  MemoryTelemetry memory;
  PHAROS_SPAN(outer, Group::kStep, "test.outer");
  StartOptions root;
  root.is_root = true;
  root.link = outer.context();
  root.start_ns = 1000;
  ManagedSpan block = start_span(Group::kJob, "test.block", root, {{kGoodput, true}});
  EXPECT_EQ(current_context(), block.context());
  block.end(5000);
  EXPECT_EQ(current_context(), outer.context());
  StartOptions beside;
  beside.make_current = false;
  beside.parent = block.context();
  ManagedSpan detached = start_span(Group::kJob, "test.detached", beside);
  EXPECT_EQ(current_context(), outer.context());
  detached.end(1);  // before its start: counts as its start
  const SpanContext dated = record_span("test.dated", Group::kJob, 100, 300, block.context(), {{"n", 1}});
  outer.end();

  const SpanData stored = memory.span("test.block");
  EXPECT_EQ(stored.parent_span_id, 0u);
  EXPECT_NE(stored.context.trace_id_low, outer.context().trace_id_low);
  EXPECT_EQ(stored.links, std::vector<SpanContext>{outer.context()});
  EXPECT_EQ(stored.start_ns, 1000);
  EXPECT_EQ(stored.end_ns, 5000);
  EXPECT_EQ(memory.span("test.detached").parent_span_id, block.context().span_id);
  EXPECT_EQ(memory.span("test.detached").end_ns, memory.span("test.detached").start_ns);
  EXPECT_EQ(memory.span("test.dated").context, dated);
  EXPECT_EQ(memory.span("test.dated").parent_span_id, block.context().span_id);
  EXPECT_EQ(memory.span("test.dated").end_ns - memory.span("test.dated").start_ns, 200);
}

TEST(Span, GroupsChangeWhileRunning) {
  MemoryTelemetry memory(0);
  EXPECT_FALSE(managed_span(Group::kStep, "test.before"));
  memory.telemetry().set_groups(group_bit(Group::kStep));
  PHAROS_SPAN(span, Group::kStep, "test.span");
  memory.telemetry().set_groups(0);
  EXPECT_FALSE(is_span_group_enabled(Group::kStep));
  span.end();  // started while its group was on
  EXPECT_EQ(memory.spans().size(), 1u);
}

TEST(Span, GroupsChangeByNameWhileTelemetryIsActive) {
  const std::vector<std::string> names = {"step", "Layer", "unknown", "layer"};
  EXPECT_THAT(set_enabled_span_groups(names), testing::ElementsAre("Layer", "unknown"));
  EXPECT_FALSE(is_span_group_enabled(Group::kStep));  // not active
  MemoryTelemetry memory(0);
  set_enabled_span_groups(names);
  EXPECT_TRUE(is_span_group_enabled("step"));
  EXPECT_TRUE(is_span_group_enabled(Group::kLayer));
  EXPECT_FALSE(is_span_group_enabled("Step"));
  EXPECT_FALSE(is_span_group_enabled("unknown"));
  EXPECT_FALSE(is_span_group_enabled("job"));
  EXPECT_TRUE(is_telemetry_active());
  set_enabled_span_groups(kAllGroups);
  EXPECT_TRUE(is_span_group_enabled(static_cast<Group>(62)));
  set_enabled_span_groups(0);
  EXPECT_TRUE(is_telemetry_active());
  EXPECT_FALSE(managed_span(Group::kStep, "test.off"));
}

void mark_two_regions() {
  PHAROS_TRACE_REGION("save_common");
  PHAROS_TRACE_REGION("dcp.write_data");
}

TEST(Span, TraceRegionsAreSpansOfTheirGroup) {
  MemoryTelemetry memory;
  mark_two_regions();
  const SpanData outer = memory.span("save_common");
  EXPECT_EQ(outer.group, Group::kTraceRegion);
  EXPECT_TRUE(outer.attributes.empty());
  EXPECT_EQ(memory.span("dcp.write_data").parent_span_id, outer.context.span_id);
  memory.telemetry().set_groups(kEveryGroup & ~group_bit(Group::kTraceRegion));
  mark_two_regions();
  EXPECT_EQ(memory.spans().size(), 2u);
}

TEST(Span, MisuseAcrossThreadsAndSessionsIsHarmless) {
  ManagedSpan left_over;
  {
    MemoryTelemetry memory;
    left_over = managed_span(Group::kStep, "test.left_over");
    ManagedSpan ended_elsewhere = managed_span(Group::kStep, "test.elsewhere");
    std::thread([&ended_elsewhere] { ended_elsewhere.end(); }).join();
    ended_elsewhere.end();
    ended_elsewhere.set("late", 1);
    ended_elsewhere.add_event("late");
    EXPECT_EQ(current_context(), left_over.context());
    EXPECT_TRUE(memory.span("test.elsewhere").attributes.empty());
    EXPECT_TRUE(memory.span("test.elsewhere").events.empty());
  }
  MemoryTelemetry next;
  left_over.set("late", 1);
  left_over.set_raw("late", std::string(1000, 'x'));
  left_over.record_exception(std::runtime_error("late"));
  left_over.set_ok();
  left_over.end();
  EXPECT_TRUE(next.spans().empty());
}

}  // namespace
}  // namespace pharos::lens
