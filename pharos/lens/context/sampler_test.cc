// Which spans are recorded, and what those that are not still do: lens.md sections 1.5, 3.1, 3.3 and 15 (C1, C2).
#include "pharos/lens/context/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "pharos/lens/context/propagation.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr SpanContext kSampledParent{1, 2, 3, 1, true};
constexpr SpanContext kUnsampledParent{1, 2, 3, 0, true};

TEST(Sampler, BucketsAreThoseOfTheSpecification) {
  const int kFirst[] = {7850, 8411, 9212, 883, 1900, 693, 412, 5555, 3101, 8374, 1824, 2650, 8112, 4873, 6038, 7603};
  for (int rank = 0; rank < 16; ++rank) EXPECT_EQ(sampling_bucket(rank), kFirst[rank]) << rank;
  const std::pair<int, int> kMore[] = {{31, 901}, {100, 1869}, {1000, 6517}, {2491, 9999}, {6393, 0}, {12345, 7915}};
  for (const auto& [rank, bucket] : kMore) EXPECT_EQ(sampling_bucket(rank), bucket) << rank;
}

TEST(Sampler, RankAwareSelectsTheRanksOfTheSpecification) {
  const auto count = [](double rate) {
    int selected = 0;
    for (int rank = 0; rank < 1024; ++rank) selected += make_rank_aware_sampler(rank, rate)->is_sampled({}, 1, 2);
    return selected;
  };
  const std::pair<double, int> kCounts[] = {{0, 0}, {-1, 0}, {0.01, 12}, {0.1, 115}, {0.5, 518}, {1, 1024}, {2, 1024}};
  for (const auto& [rate, expected] : kCounts) EXPECT_EQ(count(rate), expected) << rate;
  // Strictly less: bucket 0 is in from any rate, bucket 9999 only with 1.
  EXPECT_TRUE(make_rank_aware_sampler(6393, 1e-9)->is_sampled({}, 1, 2));
  EXPECT_FALSE(make_rank_aware_sampler(2491, 0.9999)->is_sampled({}, 1, 2));
  EXPECT_TRUE(make_rank_aware_sampler(3, 0.5)->is_sampled(kUnsampledParent, 1, 2));  // blind to the parent by itself
  const std::string description = make_rank_aware_sampler(3, 0.5)->description();
  for (const char* part : {"RankAwareSampler", "3", "0.5"}) EXPECT_THAT(description, HasSubstr(part));
}

TEST(Sampler, DecisionsByParentAndTrace) {
  const std::uint64_t low = 0x0fffffffffffffff;   // a sixteenth of 2^64
  const std::uint64_t high = 0xf000000000000000;  // fifteen sixteenths
  struct Case {
    const char* name;
    const char* argument;
    bool root_low, root_high, below_sampled, below_unsampled;
  };
  const Case kCases[] = {{"always_on", "", true, true, true, true},
                         {"always_off", "", false, false, false, false},
                         {"traceidratio", "0.5", true, false, false, false},
                         {"traceidratio", "0", false, false, false, false},
                         {"traceidratio", "1", true, true, true, true},
                         {"traceidratio", "", true, true, true, true},
                         {"parentbased_always_on", "", true, true, true, false},
                         {"parentbased_always_off", "", false, false, true, false},
                         {"parentbased_traceidratio", " 0.5 ", true, false, true, false},
                         {" ParentBased_Always_Off ", "", false, false, true, false},
                         {"", "0.5", true, true, true, false}};
  for (const Case& item : kCases) {
    std::string warning = "left over";
    const SamplerPointer sampler = make_sampler(item.name, item.argument, warning);
    EXPECT_THAT(warning, IsEmpty()) << item.name;
    EXPECT_EQ(sampler->is_sampled({}, 1, low), item.root_low) << sampler->description();
    EXPECT_EQ(sampler->is_sampled({}, 1, high), item.root_high) << sampler->description();
    EXPECT_EQ(sampler->is_sampled(kSampledParent, 1, high), item.below_sampled) << sampler->description();
    EXPECT_EQ(sampler->is_sampled(kUnsampledParent, 1, high), item.below_unsampled) << sampler->description();
  }
}

TEST(Sampler, UnknownNamesAndRatiosAreSaid) {
  struct Case {
    const char* name;
    const char* argument;
    const char* warning;
  };
  const Case kCases[] = {{"sometimes", "", "no sampler \"sometimes\""},
                         {"parentbased_", "", "no sampler"},
                         {"traceidratio", "half", "\"half\" is no number"},
                         {"traceidratio", "1.5", "\"1.5\""},
                         {"traceidratio", "-0.1", "\"-0.1\""},
                         {"traceidratio", "nan", "\"nan\""},
                         {"parentbased_traceidratio", "0.5x", "\"0.5x\""}};
  for (const Case& item : kCases) {
    std::string warning;
    const SamplerPointer sampler = make_sampler(item.name, item.argument, warning);
    EXPECT_THAT(warning, HasSubstr(item.warning));
    EXPECT_TRUE(sampler->is_sampled({}, 1, ~std::uint64_t{0})) << item.name;
  }
  EXPECT_EQ(make_trace_id_ratio_sampler(0.25)->description(), "TraceIdRatioBased{0.25}");
  EXPECT_TRUE(make_trace_id_ratio_sampler(std::nan(""))->is_sampled({}, 1, ~std::uint64_t{0}));
}

TEST(Sampler, ComposedAgreesOnlyWhenAllDo) {
  const SamplerPointer on = make_always_on_sampler();
  const SamplerPointer off = make_always_off_sampler();
  EXPECT_TRUE(make_composed_sampler({on, on})->is_sampled({}, 1, 2));
  EXPECT_FALSE(make_composed_sampler({on, off})->is_sampled({}, 1, 2));
  EXPECT_FALSE(make_composed_sampler({off, on})->is_sampled({}, 1, 2));
  // Rank 3 is selected at 0.5; the parent's decision still counts.
  const SamplerPointer ranks = make_composed_sampler({make_rank_aware_sampler(3, 0.5), make_parent_based_sampler(on)});
  EXPECT_TRUE(ranks->is_sampled({}, 1, 2));
  EXPECT_FALSE(ranks->is_sampled(kUnsampledParent, 1, 2));
  EXPECT_THAT(ranks->description(),
              testing::AllOf(HasSubstr("RankAwareSampler"), HasSubstr("ParentBased{root:AlwaysOn")));
}

TelemetryOptions with_sampler(SamplerPointer sampler) {
  TelemetryOptions options;
  options.sampler = std::move(sampler);
  return options;
}

TEST(Sampler, DroppedSpansRecordNothingButAreCurrent) {
  MemoryTelemetry memory(kEveryGroup, with_sampler(make_always_off_sampler()));
  {
    PHAROS_SPAN(outer, Group::kStep, "test.outer", {"a", 1});
    EXPECT_TRUE(outer);
    EXPECT_FALSE(outer.is_recording());
    EXPECT_TRUE(outer.context());
    EXPECT_EQ(current_context(), outer.context());
    Carrier carrier;
    inject_context(carrier);
    EXPECT_THAT(carrier.at("traceparent"), EndsWith("-02"));  // a root that was dropped
    SpanScope inner = span_cm("test.inner");
    EXPECT_EQ(inner.context().trace_id_low, outer.context().trace_id_low);
    EXPECT_NE(inner.context().span_id, outer.context().span_id);
    inner.set("a", 1);
    inner.add_event("event");
    inner.add_link(kSampledParent);
    inner.fail("no");
    inner.set_ok();
    inner.record_exception(std::runtime_error("no"));
    inner.end();
    EXPECT_FALSE(inner);
    EXPECT_EQ(current_context(), outer.context());
    EXPECT_TRUE(record_span("test.dated", Group::kStep, 1, 2, {}));
    EXPECT_TRUE(create_linked_span("test.linked", Carrier{}));
  }
  EXPECT_FALSE(current_context());
  EXPECT_THROW(traced(Group::kStep, "test.traced", [] { throw std::runtime_error("passes"); }), std::runtime_error);
  EXPECT_FALSE(current_context());
  EXPECT_THAT(memory.spans(), IsEmpty());
  EXPECT_EQ(memory.telemetry().counts().recorded, 0u);
  EXPECT_EQ(memory.telemetry().counts().refused, 0u);
}

TEST(Sampler, DroppedSpansDoNotUseUpTheOpenOnes) {
  MemoryTelemetry memory(kEveryGroup, with_sampler(make_always_off_sampler()));
  std::vector<ManagedSpan> spans;
  for (int i = 0; i < 100; ++i) spans.push_back(managed_span(Group::kStep, "test.span"));
  EXPECT_TRUE(spans.back());
  EXPECT_EQ(memory.telemetry().counts().refused, 0u);
}

TEST(Sampler, TheDefaultFollowsARemoteParentAndAlwaysOnDoesNot) {
  struct Case {
    SamplerPointer sampler;
    std::uint8_t parent_flags;
    bool is_recorded;
    const char* flags;
  };
  const Case kCases[] = {{nullptr, 1, true, "-01"},
                         {nullptr, 3, true, "-03"},
                         {nullptr, 0, false, "-00"},
                         {nullptr, 2, false, "-02"},
                         {nullptr, 0xff, true, "-03"},
                         {make_always_on_sampler(), 0, true, "-01"},
                         {make_always_off_sampler(), 1, false, "-00"},
                         {make_rank_aware_sampler(0, 0.5), 1, false, "-00"},
                         {make_rank_aware_sampler(3, 0.5), 0, true, "-01"}};
  for (const Case& item : kCases) {
    MemoryTelemetry memory(kEveryGroup, with_sampler(item.sampler));
    Carrier carrier;
    {
      RemoteContext remote;
      remote.context = kSampledParent;
      remote.context.trace_flags = item.parent_flags;
      remote.tracestate = "vendor=1";
      const AttachedContext attached(remote);
      PHAROS_SPAN(span, Group::kStep, "test.span");
      PHAROS_SPAN(child, Group::kStep, "test.child");
      inject_context(carrier);
    }
    EXPECT_EQ(memory.spans().size(), item.is_recorded ? 2u : 0u) << item.flags;
    EXPECT_THAT(carrier.at("traceparent"), EndsWith(item.flags));
    EXPECT_EQ(carrier.at("tracestate"), "vendor=1");
  }
}

TEST(Sampler, RatioIsTheSameForAllSpansOfATrace) {
  MemoryTelemetry memory(kEveryGroup, with_sampler(make_trace_id_ratio_sampler(0.5)));
  constexpr int kTraces = 400;
  for (int i = 0; i < kTraces; ++i) {
    PHAROS_SPAN(root, Group::kStep, "test.root");
    PHAROS_SPAN(child, Group::kStep, "test.child");
    EXPECT_EQ(root.is_recording(), child.is_recording());
  }
  const std::size_t recorded = memory.spans().size() / 2;
  // A fair coin is outside 120 … 280 of 400 less than once in 10^15.
  EXPECT_GT(recorded, 120u);
  EXPECT_LT(recorded, 280u);
}

}  // namespace
}  // namespace pharos::lens
