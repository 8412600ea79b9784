// What a span can hold: values of every type, more than a record, and the limits of the OpenTelemetry SDK.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "pharos/lens/record/recorder.h"
#include "pharos/lens/record/ring.h"
#include "pharos/lens/span.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

std::string key_of(int i) { return "key" + std::to_string(i); }

TEST(SpanValues, ListsOfEveryTypeComeBack) {
  MemoryTelemetry memory;
  const bool flags[] = {true, false};
  const std::string_view views[] = {"x", ""};
  const double infinity = std::numeric_limits<double>::infinity();
  {
    PHAROS_SPAN(span, Group::kStep, "test.span", {"doubles", std::vector<double>{0.5, -infinity}});
    span.set("strings", std::vector<std::string>{"a", "", "häuser 語 🚂"});
    span.set("views", std::vector<std::string_view>{"b"});
    span.set("view span", std::span<const std::string_view>(views));
    span.set("bits", std::vector<bool>{true, false, true});
    span.set("bools", std::span<const bool>(flags));
    span.set("integers", std::vector<std::int64_t>{-1, 9007199254740993});
    span.set("no doubles", std::vector<double>{});
    span.set("no strings", std::vector<std::string>{});
    span.set("no bits", std::vector<bool>{});
    span.set("infinity", infinity);
    span.set("largest", std::numeric_limits<std::uint64_t>::max());  // no value
    span.set("unsigned", std::uint64_t{5});
  }
  const SpanData span = memory.span("test.span");
  const StoredAttributes expected = {{"doubles", std::vector<double>{0.5, -infinity}},
                                     {"strings", std::vector<std::string>{"a", "", "häuser 語 🚂"}},
                                     {"views", std::vector<std::string>{"b"}},
                                     {"view span", std::vector<std::string>{"x", ""}},
                                     {"bits", std::vector<bool>{true, false, true}},
                                     {"bools", std::vector<bool>{true, false}},
                                     {"integers", std::vector<std::int64_t>{-1, 9007199254740993}},
                                     {"no doubles", std::vector<double>{}},
                                     {"no strings", std::vector<std::string>{}},
                                     {"no bits", std::vector<bool>{}},
                                     {"infinity", infinity},
                                     {"unsigned", std::int64_t{5}}};
  EXPECT_EQ(span.attributes, expected);
  EXPECT_EQ(span.num_dropped_attributes, 0u);
}

TEST(SpanValues, NotANumberIsKept) {
  MemoryTelemetry memory;
  managed_span(Group::kStep, "test.span", {"nan", std::nan("")}).end();
  EXPECT_TRUE(std::isnan(std::get<double>(attribute(memory.span("test.span"), "nan"))));
}

TEST(SpanValues, SafeSetRedactsAndRawDoesNot) {
  MemoryTelemetry memory;
  {
    SpanScope span = span_cm("test.span");
    safe_set_span_attributes(span, {{"prompt", "words"},
                                    {"PassWord", "x"},
                                    {"tokens", "kept"},
                                    {"password", 7},
                                    {"none", {}},
                                    {"secret", std::vector<std::string>{"a", "b"}}});
    safe_set_span_attributes(span, {{"mine", "x"}, {"key", "kept"}, {"Mine.list", std::vector<std::string>{"a"}}},
                             {"MINE", "mine.list"});
    span.set_raw("text", "raw is not redacted");
    span.set("token", std::vector<std::string>{"a"});
  }
  const StoredAttributes expected = {{"prompt", std::string("[REDACTED]")},
                                     {"PassWord", std::string("[REDACTED]")},
                                     {"tokens", std::string("kept")},
                                     {"password", std::int64_t{7}},
                                     {"secret", std::vector<std::string>{"[REDACTED]", "[REDACTED]"}},
                                     {"mine", std::string("[REDACTED]")},
                                     {"key", std::string("kept")},
                                     {"Mine.list", std::vector<std::string>{"[REDACTED]"}},
                                     {"text", std::string("raw is not redacted")},
                                     {"token", std::vector<std::string>{"[REDACTED]"}}};
  EXPECT_EQ(memory.span("test.span").attributes, expected);
  ManagedSpan none;
  safe_set_span_attributes(none, {{"key", 1}});
  EXPECT_EQ(redact_value("KEY", "x").as_text(), "[REDACTED]");
  EXPECT_EQ(redact_value("key", 3).as_integer(), 3);
  EXPECT_EQ(redact_value("key", "x", {}).as_text(), "x");
  // The quick test of span sites knows the same keys as the list.
  for (const std::string& key : default_redact_keys()) EXPECT_TRUE(internal::is_redacted_key(key)) << key;
}

TEST(SpanLimits, MoreThanARecordIsKeptWholeInOrderAndEverywhere) {
  const TemporaryFolder folder;
  TelemetryOptions options;
  options.run_folder = folder.path();
  MemoryTelemetry memory(kEveryGroup, options);
  const std::string text(9000, 'x');
  StoredAttributes expected;
  {
    PHAROS_SPAN(span, Group::kStep, "test.large");
    for (int i = 0; i < 60; ++i) {
      const std::string value = "value of the attribute " + std::to_string(i);
      span.set(key_of(i), value);
      expected.emplace_back(key_of(i), value);
    }
    span.set("text", "short");
    span.set_raw("long", text);
    expected.emplace_back("text", std::string("[REDACTED]"));
    expected.emplace_back("long", text);
    span.add_link(SpanContext{1, 2, 3});
    span.record_exception("ValueError", text);
    { PHAROS_SPAN(inner, Group::kStep, "test.small"); }
  }
  managed_span(Group::kStep, "test.next").end();
  const SpanData span = memory.span("test.large");
  EXPECT_EQ(span.attributes, expected);
  EXPECT_EQ(span.num_dropped_attributes, 0u);
  EXPECT_FALSE(span.is_cut);
  EXPECT_EQ(span.links.size(), 1u);
  EXPECT_EQ(span.status_description, text);
  ASSERT_EQ(span.events.size(), 1u);
  EXPECT_EQ(span.events[0].attributes[1].second, StoredValue(text));
  const TelemetryCounts counts = memory.telemetry().counts();
  EXPECT_EQ(counts.recorded, 3u);  // continuations are no spans
  EXPECT_EQ(counts.exported, 3u);
  EXPECT_EQ(counts.overwritten, 0u);
  const RingContents ring = read_ring(memory.telemetry().ring_path());
  ASSERT_EQ(ring.spans.size(), 3u);
  EXPECT_EQ(ring.num_overwritten, 0u);
  EXPECT_EQ(ring.spans[1].name, "test.large");
  EXPECT_EQ(ring.spans[1].attributes, expected);
}

TEST(SpanLimits, ReplacingInTheSpilledPartMovesToTheEnd) {
  MemoryTelemetry memory;
  {
    PHAROS_SPAN(span, Group::kStep, "test.span");
    for (int i = 0; i < 40; ++i) span.set(key_of(i), i);
    for (int i = 0; i < 40; ++i) span.set(key_of(i), -i);
  }
  const SpanData span = memory.span("test.span");
  ASSERT_EQ(span.attributes.size(), 40u);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(span.attributes[static_cast<std::size_t>(i)].first, key_of(i));
    EXPECT_EQ(attribute(span, key_of(i)), StoredValue(std::int64_t{-i}));
  }
  EXPECT_EQ(span.num_dropped_attributes, 0u);
}

TEST(SpanLimits, OldestAttributeMakesWayAndIsCounted) {
  struct Case {
    std::uint32_t limit;
    int num_set;
  };
  const Case kCases[] = {{128, 128}, {128, 200}, {3, 5}, {1, 2}, {0, 4}, {1000, 300}};
  for (const Case& item : kCases) {
    TelemetryOptions options;
    options.limits.span_attributes = item.limit;
    MemoryTelemetry memory(kEveryGroup, options);
    {
      PHAROS_SPAN(span, Group::kStep, "test.span");
      for (int i = 0; i < item.num_set; ++i) span.set(key_of(i), i);
    }
    const SpanData span = memory.span("test.span");
    const int num_kept = std::min<int>(item.num_set, static_cast<int>(item.limit));
    ASSERT_EQ(span.attributes.size(), static_cast<std::size_t>(num_kept)) << item.limit;
    EXPECT_EQ(span.num_dropped_attributes, static_cast<std::uint32_t>(item.num_set - num_kept)) << item.limit;
    EXPECT_EQ(memory.telemetry().counts().dropped_attributes, span.num_dropped_attributes);
    if (num_kept > 0) {
      EXPECT_EQ(span.attributes.front().first, key_of(item.num_set - num_kept));
      EXPECT_EQ(span.attributes.back().first, key_of(item.num_set - 1));
    }
  }
}

TEST(SpanLimits, EventsLinksAndTheirAttributes) {
  TelemetryOptions options;
  options.limits.events = 2;
  options.limits.links = 3;
  options.limits.event_attributes = 1;
  MemoryTelemetry memory(kEveryGroup, options);
  {
    PHAROS_SPAN(span, Group::kStep, "test.span");
    for (std::uint64_t i = 1; i <= 5; ++i) {
      span.add_event("event", {{"a", 1}, {"b", 2}, {"c", 3}});
      span.add_link(SpanContext{1, 2, i});
    }
  }
  const SpanData span = memory.span("test.span");
  ASSERT_EQ(span.events.size(), 2u);
  EXPECT_EQ(span.events[0].attributes.size(), 1u);
  EXPECT_EQ(span.events[0].num_dropped_attributes, 2u);
  EXPECT_EQ(span.links.size(), 3u);
  EXPECT_EQ(span.num_dropped_events, 3u);
  EXPECT_EQ(span.num_dropped_links, 2u);
  EXPECT_EQ(span.num_dropped_attributes, 0u);
}

TEST(SpanLimits, TextLimitCountsCharactersAndLeavesNoMark) {
  TelemetryOptions options;
  options.limits.span_text_characters = 3;
  options.limits.event_text_characters = 2;
  MemoryTelemetry memory(kEveryGroup, options);
  {
    PHAROS_SPAN(span, Group::kStep, "test.span", {"ascii", "abcdef"}, {"short", "ab"}, {"utf8", "äöüß"});
    span.set("list", std::vector<std::string>{"abcd", "語語語語"});
    span.add_event("event", {{"a", "abcdef"}});
  }
  const SpanData span = memory.span("test.span");
  EXPECT_EQ(attribute(span, "ascii"), StoredValue(std::string("abc")));
  EXPECT_EQ(attribute(span, "short"), StoredValue(std::string("ab")));
  EXPECT_EQ(attribute(span, "utf8"), StoredValue(std::string("äöü")));
  EXPECT_EQ(attribute(span, "list"), StoredValue(std::vector<std::string>{"abc", "語語語"}));
  EXPECT_EQ(span.events.at(0).attributes.at(0).second, StoredValue(std::string("ab")));
  EXPECT_FALSE(span.is_cut);
}

TEST(SpanLimits, HugeTextIsCutBetweenCharactersAndMarkedHugeListsAreCounted) {
  MemoryTelemetry memory;
  std::string text;
  while (text.size() < 2 * kMaxValueBytes) text += "ä";
  {
    PHAROS_SPAN(span, Group::kStep, "test.span", {"long", text});
    span.set("list", std::vector<std::int64_t>(kMaxValueBytes / 8 + 1));
    span.set(std::string(256, 'k'), 1);
    span.set(std::string(255, 'k'), 1);
    span.fail(text);
  }
  const SpanData span = memory.span("test.span");
  const std::string stored = std::get<std::string>(attribute(span, "long"));
  EXPECT_TRUE(span.is_cut);
  EXPECT_LE(stored.size(), kMaxValueBytes);
  EXPECT_GT(stored.size(), kMaxValueBytes - 4);
  EXPECT_EQ(stored, text.substr(0, stored.size() - 3) + "…");
  EXPECT_EQ(span.status_description, stored);
  EXPECT_EQ(span.attributes.size(), 2u);
  EXPECT_EQ(span.num_dropped_attributes, 2u);
}

TEST(SpanLimits, ASpanCannotFloodASmallRing) {
  TelemetryOptions options;
  options.ring_records = 16;  // a quarter of it may be continuations
  MemoryTelemetry memory(kEveryGroup, options);
  {
    PHAROS_SPAN(span, Group::kStep, "test.span");
    for (int i = 0; i < 100; ++i) span.set(key_of(i), std::string(100, 'x'));
  }
  const SpanData span = memory.span("test.span");
  EXPECT_GT(span.attributes.size(), 10u);
  EXPECT_LT(span.attributes.size(), 16u);
  EXPECT_EQ(span.attributes.size() + span.num_dropped_attributes, 100u);
}

TEST(SpanLimits, OverwrittenContinuationsCostTheirAttributesOnly) {
  const TemporaryFolder folder;
  TelemetryOptions options;
  options.run_folder = folder.path();
  options.ring_records = 16;
  options.groups = kEveryGroup;
  Telemetry& telemetry = Telemetry::init(options);
  {
    PHAROS_SPAN(span, Group::kStep, "test.large");
    for (int i = 0; i < 8; ++i) span.set(key_of(i), std::string(100, 'x'));  // 2 in the record, 6 in 3 more
  }
  // 4 records so far; 14 more overwrite the first two of them.
  for (int i = 0; i < 14; ++i) managed_span(Group::kStep, "test.step", {"i", i}).end();
  telemetry.shutdown();
  const RingContents ring = read_ring(telemetry.ring_path());
  ASSERT_EQ(ring.spans.size(), 15u);
  EXPECT_EQ(ring.num_overwritten, 0u);
  EXPECT_EQ(ring.spans[0].name, "test.large");
  EXPECT_EQ(ring.spans[0].attributes.size(), 2u);
  EXPECT_EQ(ring.spans[0].num_dropped_attributes, 6u);
}

TEST(SpanLimits, SpansStillOpenAtShutdownAreExportedWhole) {
  const TemporaryFolder folder;
  TelemetryOptions options;
  options.run_folder = folder.path();
  std::filesystem::path path;
  auto exporter = std::make_shared<MemoryExporter>();
  options.pipeline.exporters.push_back(exporter);
  options.groups = kEveryGroup;
  Telemetry& telemetry = Telemetry::init(options);
  PHAROS_SPAN(span, Group::kStep, "test.open");
  for (int i = 0; i < 40; ++i) span.set(key_of(i), "a value");
  const RingContents before = read_ring(telemetry.ring_path());
  ASSERT_EQ(before.open_spans.size(), 1u);
  // The file has what is in the slot; the rest is counted.
  EXPECT_EQ(before.open_spans[0].attributes.size() - 1 + before.open_spans[0].num_dropped_attributes, 40u);
  EXPECT_GT(before.open_spans[0].num_dropped_attributes, 0u);
  telemetry.shutdown();
  ASSERT_EQ(exporter->spans().size(), 1u);
  EXPECT_EQ(exporter->spans()[0].attributes.size(), 41u);
  EXPECT_EQ(exporter->spans()[0].num_dropped_attributes, 0u);
  EXPECT_EQ(attribute(exporter->spans()[0], "nemo.span.truncated"), StoredValue(true));
}

TEST(SpanLimits, LargeSpansOfManyThreadsAndMovedOnes) {
  MemoryTelemetry memory;
  constexpr int kThreads = 4;
  constexpr int kSpans = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kSpans; ++i) {
        ManagedSpan span = managed_span(Group::kStep, "test.span");
        for (int k = 0; k < 30; ++k) span.set(key_of(k), i);
        if (i % 10 == 0) {
          std::thread([moved = std::move(span)]() mutable { moved.set("moved", std::string(500, 'm')); }).join();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<SpanData> spans = memory.spans();
  ASSERT_EQ(spans.size(), static_cast<std::size_t>(kThreads * kSpans));
  int num_moved = 0;
  for (const SpanData& span : spans) {
    const bool is_moved = attribute(span, "moved") == StoredValue(std::string(500, 'm'));
    num_moved += is_moved;
    ASSERT_EQ(span.attributes.size(), is_moved ? 31u : 30u);
    ASSERT_EQ(span.num_dropped_attributes, 0u);
  }
  EXPECT_EQ(num_moved, kThreads * kSpans / 10);
}

}  // namespace
}  // namespace pharos::lens
