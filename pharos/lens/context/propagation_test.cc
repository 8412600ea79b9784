// Trace context between processes: lens.md section 7.
#include "pharos/lens/context/propagation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

using testing::IsEmpty;

constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const SpanContext kParentContext{0x0af7651916cd43dd, 0x8448eb211c80319c, 0xb7ad6b7169203331, 1, true};

std::string parent_with(std::size_t position, const std::string& text) {
  std::string parent = kParent;
  return parent.replace(position, text.size(), text);
}

/// What the OpenTelemetry SDK for Python 1.45 accepts, observed by running it.
TEST(Propagation, TraceparentGrammar) {
  struct Case {
    std::string text;
    bool is_valid;
    std::uint8_t flags;
  };
  const std::string parent = kParent;
  const Case kCases[] = {{parent, true, 1},
                         {" " + parent + " ", true, 1},
                         {"\t" + parent, true, 1},
                         {parent_with(53, "ff"), true, 0xff},
                         {parent_with(53, "00"), true, 0},
                         {parent_with(0, "01"), true, 1},
                         {parent_with(0, "01") + "-x", true, 1},
                         {parent_with(0, "01") + "-", true, 1},
                         {parent_with(0, "01") + "x", false, 0},
                         {parent + "-x", false, 0},
                         {parent + "-", false, 0},
                         {parent_with(0, "ff"), false, 0},
                         {parent_with(0, "0g"), false, 0},
                         {parent_with(3, "0AF7651916CD43DD8448EB211C80319C"), false, 0},
                         {parent_with(36, "B7AD6B7169203331"), false, 0},
                         {parent_with(53, "FF"), false, 0},
                         {parent_with(3, std::string(32, '0')), false, 0},
                         {parent_with(36, std::string(16, '0')), false, 0},
                         {parent_with(2, "_"), false, 0},
                         {parent_with(35, "_"), false, 0},
                         {parent_with(52, "_"), false, 0},
                         {parent_with(10, " "), false, 0},
                         {parent.substr(0, 54), false, 0},
                         {"", false, 0},
                         {"garbage", false, 0}};
  for (const Case& item : kCases) {
    const SpanContext context = parse_traceparent(item.text);
    EXPECT_EQ(static_cast<bool>(context), item.is_valid) << item.text;
    if (!item.is_valid) continue;
    EXPECT_EQ(context, kParentContext) << item.text;
    EXPECT_EQ(context.trace_flags, item.flags) << item.text;
    EXPECT_TRUE(context.is_remote);
  }
  EXPECT_EQ(format_traceparent(kParentContext), kParent);
  EXPECT_EQ(format_traceparent({1, 2, 3, 0xff}), "00-00000000000000010000000000000002-0000000000000003-ff");
}

std::string many_members(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text.append(i == 0 ? "k" : ",k").append(std::to_string(i)).append("=1");
  return text;
}

TEST(Propagation, TracestateGrammar) {
  struct Case {
    std::string text;
    std::string state;
  };
  const Case kCases[] = {{"a=1", "a=1"},
                         {"vendor=1,b=2", "vendor=1,b=2"},
                         {" a=1 , b=2 ", "a=1,b=2"},
                         {"a=1,,b=2", "a=1,b=2"},
                         {"0t@s=1", "0t@s=1"},
                         {"a= 1", "a= 1"},
                         {"a=1;x", "a=1;x"},
                         {"a*/-_9=~", "a*/-_9=~"},
                         {many_members(32), many_members(32)},
                         {many_members(33), ""},
                         {"a=1,a=2", ""},
                         {"A=1", ""},
                         {"0a=1", ""},
                         {"a=", ""},
                         {"a", ""},
                         {"=1", ""},
                         {"a=b=c", ""},
                         {"t@0s=1", ""},
                         {"t@=1", ""},
                         {"@s=1", ""},
                         {"a=é", ""},
                         {"a=1\tb", ""},
                         {"a=1,bad,b=2", ""},
                         {std::string("a=").append(257, 'x'), ""},
                         {std::string(257, 'a') + "=1", ""},
                         {"", ""}};
  for (const Case& item : kCases) EXPECT_EQ(parse_tracestate(item.text), item.state) << item.text;
}

TEST(Propagation, BaggageGrammarAndWhatIsHandedOn) {
  struct Case {
    std::string text;
    Baggage baggage;
    std::string handed_on;
  };
  const Case kCases[] = {{"user=a%20b", {{"user", "a b"}}, "user=a+b"},
                         {"user=a+b", {{"user", "a b"}}, "user=a+b"},
                         {"a=1;p=x", {{"a", "1;p=x"}}, "a=1%3Bp%3Dx"},
                         {"a=1 ; p = x", {{"a", "1 ; p = x"}}, "a=1+%3B+p+%3D+x"},
                         {"k%20=v", {{"k", "v"}}, "k=v"},
                         {" a = 1 ", {{"a", "1"}}, "a=1"},
                         {"a=", {{"a", ""}}, "a="},
                         {"a=1,b,c=3", {{"a", "1"}, {"c", "3"}}, "a=1,c=3"},
                         {"a=%zz", {{"a", "%zz"}}, "a=%25zz"},
                         {"a=%4", {{"a", "%4"}}, "a=%254"},
                         {"a=1,a=2", {{"a", "2"}}, "a=2"},
                         {"k=v=w", {{"k", "v=w"}}, "k=v%3Dw"},
                         {"a=%C3%BC", {{"a", "ü"}}, "a=%C3%BC"},
                         {"a%2Cb=1", {{"a,b", "1"}}, "a%2Cb=1"},
                         {"a=~*'()!", {{"a", "~*'()!"}}, "a=~%2A%27%28%29%21"},
                         {"a", {}, ""},
                         {"=1", {}, ""},
                         {"a=\"q\"", {}, ""},
                         {"a=x y", {}, ""},
                         {"a b=1", {}, ""},
                         {"a=ü", {}, ""},
                         {"ü=1", {}, ""},
                         {"a=1\\", {}, ""},
                         {"a=1;p q", {}, ""},
                         {"", {}, ""}};
  for (const Case& item : kCases) {
    EXPECT_EQ(parse_baggage(item.text), item.baggage) << item.text;
    EXPECT_EQ(format_baggage(item.baggage), item.handed_on) << item.text;
  }
}

TEST(Propagation, BaggageLimits) {
  Baggage many;
  for (int i = 0; i < 200; ++i) many.emplace_back(std::string("k").append(std::to_string(i)), "v");
  EXPECT_EQ(parse_baggage(format_baggage(many)).size(), 180u);
  EXPECT_THAT(format_baggage({{"k", std::string(4095, 'v')}}), IsEmpty());
  EXPECT_EQ(format_baggage({{"k", std::string(4094, 'v')}}).size(), 4096u);
  const Baggage large = {{"a", std::string(4000, 'v')}, {"b", std::string(4000, 'v')}, {"c", std::string(4000, 'v')}};
  EXPECT_EQ(parse_baggage(format_baggage(large)).size(), 2u);
  EXPECT_THAT(parse_baggage(std::string("k=").append(4095, 'v')), IsEmpty());
  EXPECT_THAT(parse_baggage(std::string("k=v,").append(8190, ' ')), IsEmpty());
}

TEST(Propagation, InjectAndExtract) {
  Carrier carrier = {{"other", "stays"}};
  inject_context(carrier);
  EXPECT_EQ(carrier, (Carrier{{"other", "stays"}}));
  MemoryTelemetry memory;
  inject_context(carrier);
  EXPECT_EQ(carrier, (Carrier{{"other", "stays"}}));
  PHAROS_SPAN(span, Group::kStep, "test.span");
  inject_context(carrier);
  EXPECT_EQ(carrier.at("traceparent"), format_traceparent(span.context()));
  EXPECT_THAT(carrier.at("traceparent"), testing::EndsWith("-03"));  // a local root
  EXPECT_EQ(carrier.size(), 2u);
  EXPECT_EQ(extract_context(carrier).context, span.context());
  EXPECT_FALSE(extract_context({{"Traceparent", kParent}}).context);  // keys have a case
  EXPECT_THAT(extract_context({{"traceparent", "x"}, {"tracestate", "a=1"}}).tracestate, IsEmpty());
}

TEST(Propagation, ChildrenOfARemoteParentKeepItsFlagsStateAndBaggage) {
  MemoryTelemetry memory;
  const Carrier carrier = {{"traceparent", kParent}, {"tracestate", "vendor=1"}, {"baggage", "user=a%20b"}};
  Carrier out;
  Carrier inner_out;
  Carrier thread_out;
  {
    const AttachedContext attached(extract_context(carrier));
    EXPECT_EQ(current_context(), kParentContext);
    SpanScope child = span_cm("test.child");
    inject_context(out);
    PHAROS_SPAN(inner, Group::kStep, "test.inner");
    inject_context(inner_out);
    const CapturedContext captured = CapturedContext::current();
    std::thread([&] {
      const AttachedContext again(captured);
      PHAROS_SPAN(span, Group::kStep, "test.thread");
      inject_context(thread_out);
    }).join();
  }
  EXPECT_FALSE(current_context());
  const SpanData child = memory.span("test.child");
  EXPECT_EQ(out, (Carrier{{"traceparent", format_traceparent(child.context)},
                          {"tracestate", "vendor=1"},
                          {"baggage", "user=a+b"}}));
  EXPECT_THAT(out.at("traceparent"), testing::StartsWith("00-0af7651916cd43dd8448eb211c80319c-"));
  EXPECT_THAT(out.at("traceparent"), testing::EndsWith("-01"));
  EXPECT_EQ(child.parent_span_id, kParentContext.span_id);
  EXPECT_TRUE(child.parent_is_remote);
  EXPECT_EQ(child.tracestate, "vendor=1");
  EXPECT_EQ(child.context.trace_flags, 1);
  EXPECT_FALSE(child.context.is_remote);
  EXPECT_THAT(child.attributes, IsEmpty());
  for (const char* name : {"test.inner", "test.thread"}) {
    const SpanData span = memory.span(name);
    EXPECT_FALSE(span.parent_is_remote) << name;
    EXPECT_EQ(span.tracestate, "vendor=1") << name;
  }
  for (const Carrier& carried : {inner_out, thread_out}) {
    EXPECT_EQ(carried.at("tracestate"), "vendor=1");
    EXPECT_EQ(carried.at("baggage"), "user=a+b");
  }
  // Nothing is left behind.
  PHAROS_SPAN(after, Group::kStep, "test.after");
  Carrier later;
  inject_context(later);
  EXPECT_EQ(later.size(), 1u);
  after.end();
  EXPECT_THAT(memory.span("test.after").tracestate, IsEmpty());
}

TEST(Propagation, InvalidRemoteContextHidesTheCurrentSpan) {
  MemoryTelemetry memory;
  PHAROS_SPAN(outer, Group::kStep, "test.outer");
  {
    const AttachedContext attached(extract_context({{"traceparent", "garbage"}, {"baggage", "a=1"}}));
    EXPECT_FALSE(current_context());
    Carrier carrier;
    inject_context(carrier);
    EXPECT_EQ(carrier, (Carrier{{"baggage", "a=1"}}));
    PHAROS_SPAN(root, Group::kStep, "test.root");
  }
  EXPECT_EQ(current_context(), outer.context());
  outer.end();
  const SpanData root = memory.span("test.root");
  EXPECT_EQ(root.parent_span_id, 0u);
  EXPECT_NE(root.context.trace_id_low, memory.span("test.outer").context.trace_id_low);
}

TEST(Propagation, SpansOfAnotherTraceLeaveTheTraceStateBehind) {
  MemoryTelemetry memory;
  const AttachedContext attached(
      extract_context({{"traceparent", kParent}, {"tracestate", "a=1"}, {"baggage", "b=2"}}));
  StartOptions root;
  root.is_root = true;
  ManagedSpan span = start_span(Group::kStep, "test.root", root);
  Carrier carrier;
  inject_context(carrier);
  EXPECT_EQ(carrier, (Carrier{{"traceparent", format_traceparent(span.context())}, {"baggage", "b=2"}}));
  span.end();
  EXPECT_THAT(memory.span("test.root").tracestate, IsEmpty());
}

TEST(Propagation, LinkedSpans) {
  MemoryTelemetry memory(0);  // no group needed
  SpanScope outer = span_cm("test.outer");
  ManagedSpan linked = create_linked_span("test.linked", Carrier{{"traceparent", kParent}}, {{"rank", 1}});
  EXPECT_EQ(current_context(), outer.context());
  linked.end();
  create_linked_span("test.nothing", Carrier{{"traceparent", "garbage"}}).end();
  create_linked_span("test.empty", Carrier{}).end();
  const SpanData span = memory.span("test.linked");
  EXPECT_EQ(span.parent_span_id, outer.context().span_id);
  EXPECT_EQ(span.scope, Scope::kLens);
  EXPECT_TRUE(span.is_ungated);
  EXPECT_EQ(attribute(span, "rank"), StoredValue(std::int64_t{1}));
  ASSERT_EQ(span.links.size(), 1u);
  EXPECT_EQ(span.links[0], kParentContext);
  EXPECT_TRUE(span.links[0].is_remote);
  EXPECT_EQ(span.links[0].trace_flags, 1);
  EXPECT_THAT(memory.span("test.nothing").links, IsEmpty());
  EXPECT_THAT(memory.span("test.empty").links, IsEmpty());
}

TEST(Propagation, DerivedContextsAgreeAndDiffer) {
  const SpanContext context = derive_trace_context("run", 7);
  EXPECT_EQ(derive_trace_context("run", 7), context);
  EXPECT_TRUE(context.is_remote);
  EXPECT_TRUE(context.is_sampled());
  // SHA-256 of "pharos trace 3 run 7", computed with sha256sum.
  EXPECT_EQ(format_traceparent(context), "00-1d384b7587886ca08b6fb7095b8fade2-b39bb20102eeca44-03");
  std::set<std::string> seen;
  for (const char* run : {"run", "run2", "", "run 1"}) {
    for (std::int64_t step = -1; step < 100; ++step) seen.insert(format_traceparent(derive_trace_context(run, step)));
  }
  EXPECT_EQ(seen.size(), 404u);
  MemoryTelemetry memory;
  {
    RemoteContext remote;
    remote.context = context;
    const AttachedContext attached(remote);
    PHAROS_SPAN(span, Group::kStep, "test.span");
  }
  EXPECT_EQ(memory.span("test.span").context.trace_id_high, context.trace_id_high);
}

TEST(Propagation, JsonBroadcastIsThatOfPython) {
  struct Case {
    Carrier carrier;
    std::string bytes;
  };
  const Case kCases[] = {{{}, "{}"},
                         {{{"traceparent", kParent}}, std::string("{\"traceparent\": \"") + kParent + "\"}"},
                         {{{"baggage", "a=1"}, {"tracestate", "v=1"}, {"traceparent", "t"}, {"x", "y"}},
                          R"({"traceparent": "t", "tracestate": "v=1", "baggage": "a=1", "x": "y"})"},
                         {{{"x", "ä\"\\\n\x7f🚂"}}, R"({"x": "\u00e4\"\\\n\u007f\ud83d\ude82"})"}};
  for (const Case& item : kCases) {
    EXPECT_EQ(encode_trace_broadcast(item.carrier), item.bytes);
    EXPECT_EQ(decode_trace_broadcast(item.bytes), item.carrier);
  }
  EXPECT_EQ(encode_trace_broadcast({{"traceparent", kParent}}).size(), 74u);
  for (const char* bad : {"", "{", "[]", "7", "null", "\"text\"", "{\"a\":}", "\xff"}) {
    EXPECT_EQ(decode_trace_broadcast(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(decode_trace_broadcast(R"({"a":"b","n":1})"), (Carrier{{"a", "b"}}));
}

TEST(Propagation, FrameHoldsOneContext) {
  const TraceFrame frame = encode_trace_frame(kParentContext);
  const std::optional<SpanContext> decoded = decode_trace_frame(frame);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, kParentContext);
  EXPECT_EQ(decoded->trace_flags, 1);
  EXPECT_TRUE(decoded->is_remote);
  EXPECT_EQ(frame[8], std::byte{0x0a});  // big endian
  EXPECT_EQ(frame[31], std::byte{0x31});
  const std::optional<SpanContext> nothing = decode_trace_frame(encode_trace_frame({}));
  ASSERT_TRUE(nothing);
  EXPECT_FALSE(*nothing);
  // Every byte but flags and ids is fixed.
  for (std::size_t i = 0; i < frame.size(); ++i) {
    TraceFrame damaged = frame;
    damaged[i] ^= std::byte{0x40};
    const bool is_free = i == 6 || (i >= 8 && i < 32);
    EXPECT_EQ(decode_trace_frame(damaged).has_value(), is_free) << i;
  }
  EXPECT_FALSE(decode_trace_frame(std::span(frame).first(63)));
  EXPECT_FALSE(decode_trace_frame(TraceFrame{}));
}

/// Ranks that call one after the other, the source first.
class Loopback {
 public:
  BroadcastBytes rank(int rank, int src_rank) {
    std::size_t call = 0;
    return [this, rank, src_rank, call](std::span<std::byte> bytes, int source) mutable {
      EXPECT_EQ(source, src_rank);
      if (rank == src_rank) {
        sent_.emplace_back(bytes.begin(), bytes.end());
      } else {
        EXPECT_EQ(bytes.size(), sent_.at(call).size());
        std::copy(sent_[call].begin(), sent_[call].end(), bytes.begin());
      }
      ++call;
    };
  }
  std::size_t num_calls() const { return sent_.size(); }

 private:
  std::vector<std::vector<std::byte>> sent_;
};

TEST(Propagation, BroadcastGivesAllRanksTheContextOfTheSource) {
  struct Case {
    TraceBroadcast form;
    bool has_context;
    std::size_t num_calls;
  };
  const Case kCases[] = {{TraceBroadcast::kFrame, true, 1},
                         {TraceBroadcast::kFrame, false, 1},
                         {TraceBroadcast::kJson, true, 2},
                         {TraceBroadcast::kJson, false, 2}};
  for (const Case& item : kCases) {
    MemoryTelemetry memory;
    Loopback loopback;
    Carrier expected;
    Carrier source;
    {
      ManagedSpan span = item.has_context ? managed_span(Group::kStep, "test.step") : ManagedSpan();
      inject_context(expected);
      source = broadcast_trace_context(2, 2, loopback.rank(2, 2), item.form);
    }
    EXPECT_EQ(source, expected);
    EXPECT_EQ(expected.size(), item.has_context ? 1u : 0u);
    for (const int rank : {0, 1, 3}) {
      // What is current in a rank that is not the source does not matter.
      PHAROS_SPAN(own, Group::kStep, "test.own");
      EXPECT_EQ(broadcast_trace_context(rank, 2, loopback.rank(rank, 2), item.form), expected);
      EXPECT_EQ(current_context(), own.context());
    }
    EXPECT_EQ(loopback.num_calls(), item.num_calls);
  }
}

TEST(Propagation, BroadcastOfAnotherLanguageIsRefusedOrEmpty) {
  const auto send = [](std::int64_t length, const std::string& text) {
    return [length, text, call = 0](std::span<std::byte> bytes, int) mutable {
      const void* source = call++ == 0 ? static_cast<const void*>(&length) : text.data();
      std::memcpy(bytes.data(), source, bytes.size());
    };
  };
  EXPECT_THAT(broadcast_trace_context(1, 0, send(0, ""), TraceBroadcast::kJson), IsEmpty());
  EXPECT_THAT(broadcast_trace_context(1, 0, send(2, "[]"), TraceBroadcast::kJson), IsEmpty());
  EXPECT_THROW(broadcast_trace_context(1, 0, send(-1, ""), TraceBroadcast::kJson), base::InternalError);
  EXPECT_THROW(broadcast_trace_context(1, 0, send(1 << 30, ""), TraceBroadcast::kJson), base::InternalError);
  EXPECT_THAT(broadcast_trace_context(1, 0, [](std::span<std::byte> bytes, int) { bytes[0] = std::byte{9}; }),
              IsEmpty());
}

TEST(Propagation, CarriersOfPipelineSchedulesAreKeyed) {
  EXPECT_THAT(get_pp_trace_carrier(), IsEmpty());
  set_pp_trace_carrier({{"traceparent", "a"}});
  set_pp_trace_carrier({{"traceparent", "b"}}, "chunk 1");
  EXPECT_EQ(get_pp_trace_carrier().at("traceparent"), "a");
  EXPECT_EQ(get_pp_trace_carrier("chunk 1").at("traceparent"), "b");
  EXPECT_THAT(get_pp_trace_carrier("chunk 2"), IsEmpty());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 1000; ++i) {
        set_pp_trace_carrier({{"traceparent", std::string(100, static_cast<char>('a' + t))}}, "shared");
        const std::string text = get_pp_trace_carrier("shared").at("traceparent");
        ASSERT_EQ(text, std::string(100, text[0]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  set_pp_trace_carrier({});
  EXPECT_THAT(get_pp_trace_carrier(), IsEmpty());
}

}  // namespace
}  // namespace pharos::lens
