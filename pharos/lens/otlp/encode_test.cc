#include "pharos/lens/otlp/encode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <protozero/pbf_reader.hpp>

#include "pharos/lens/otlp/utf8.h"

namespace pharos::lens::otlp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A protobuf message read without a schema: the values of one field number at a time.
class Message {
 public:
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}

  std::vector<std::string> texts(protozero::pbf_tag_type tag) const {
    std::vector<std::string> found;
    protozero::pbf_reader reader(bytes_);
    while (reader.next(tag, protozero::pbf_wire_type::length_delimited)) found.push_back(reader.get_string());
    return found;
  }
  std::string text(protozero::pbf_tag_type tag) const {
    const auto found = texts(tag);
    EXPECT_EQ(found.size(), 1U) << "field " << tag;
    return found.empty() ? "" : found[0];
  }
  std::vector<Message> messages(protozero::pbf_tag_type tag) const {
    std::vector<Message> found;
    for (const std::string& bytes : texts(tag)) found.emplace_back(bytes);
    return found;
  }
  Message message(protozero::pbf_tag_type tag) const { return Message(text(tag)); }
  Message at(std::initializer_list<protozero::pbf_tag_type> path) const {
    Message inner = *this;
    for (const auto tag : path) inner = inner.message(tag);
    return inner;
  }
  std::vector<std::uint64_t> numbers(protozero::pbf_tag_type tag) const {
    std::vector<std::uint64_t> found;
    protozero::pbf_reader reader(bytes_);
    while (reader.next(tag)) {
      switch (reader.wire_type()) {
        case protozero::pbf_wire_type::varint:
          found.push_back(reader.get_uint64());
          break;
        case protozero::pbf_wire_type::fixed64:
          found.push_back(reader.get_fixed64());
          break;
        case protozero::pbf_wire_type::fixed32:
          found.push_back(reader.get_fixed32());
          break;
        default:
          ADD_FAILURE() << "field " << tag << " is no number";
          reader.skip();
      }
    }
    return found;
  }
  std::uint64_t number(protozero::pbf_tag_type tag) const {
    const auto found = numbers(tag);
    EXPECT_EQ(found.size(), 1U) << "field " << tag;
    return found.empty() ? 0 : found[0];
  }
  double real(protozero::pbf_tag_type tag) const {
    const std::uint64_t bits = number(tag);
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  bool has(protozero::pbf_tag_type tag) const { return protozero::pbf_reader(bytes_).next(tag); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

std::string hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

const Resource kResource = {.attributes = {{"service.name", std::string("test")}},
                            .wall_anchor_ns = 1'800'000'000'000'000'000,
                            .monotonic_anchor_ns = 5000};

SpanContext context(std::uint64_t span_id, bool is_remote = false) {
  return {.trace_id_high = 0x0102030405060708,
          .trace_id_low = 0x090a0b0c0d0e0f10,
          .span_id = span_id,
          .is_remote = is_remote};
}

SpanData span(std::string name) {
  SpanData data;
  data.name = std::move(name);
  data.context = context(0xa1);
  data.start_ns = 6000;
  data.end_ns = 7000;
  return data;
}

/// resource_spans[0].scope_spans[0].spans[0].
Message encoded_span(const SpanData& data) {
  return Message(encode_traces(std::vector{data}, kResource)).at({1, 2, 2});
}

TEST(Encode, SpanHasItsFieldsAndUnixTimes) {
  SpanData data = span("megatron.step");
  data.parent_span_id = 0xb2;
  data.num_dropped_attributes = 3;
  const Message encoded = encoded_span(data);
  EXPECT_EQ(hex(encoded.text(1)), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(hex(encoded.text(2)), "00000000000000a1");
  EXPECT_EQ(hex(encoded.text(4)), "00000000000000b2");
  EXPECT_EQ(encoded.text(5), "megatron.step");
  EXPECT_EQ(encoded.number(6), 1U);  // INTERNAL
  EXPECT_EQ(encoded.number(7), 1'800'000'000'000'001'000U);
  EXPECT_EQ(encoded.number(8), 1'800'000'000'000'002'000U);
  EXPECT_EQ(encoded.number(10), 3U);
}

TEST(Encode, TraceStateAndWhatWasDropped) {
  SpanData data = span("megatron.step");
  data.tracestate = "vendor=a,other=b";
  data.events = {{"overfull", 6500, {}, 7}};
  data.num_dropped_events = 4;
  data.num_dropped_links = 5;
  const Message encoded = encoded_span(data);
  EXPECT_EQ(encoded.text(3), "vendor=a,other=b");
  EXPECT_EQ(encoded.number(12), 4U);
  EXPECT_EQ(encoded.number(14), 5U);
  EXPECT_EQ(encoded.message(11).number(4), 7U);
  EXPECT_FALSE(encoded_span(span("plain")).has(3));
}

TEST(Encode, RootSpanHasNoParentAndNoDroppedCount) {
  const Message encoded = encoded_span(span("job"));
  EXPECT_FALSE(encoded.has(4));
  EXPECT_FALSE(encoded.has(10));
}

TEST(Encode, OpenSpanEndsWhereItStarts) {
  SpanData data = span("died");
  data.end_ns = 0;
  EXPECT_EQ(encoded_span(data).number(8), encoded_span(data).number(7));
}

TEST(Encode, FlagsSayWhetherTheParentIsRemote) {
  SpanData data = span("step");
  EXPECT_EQ(encoded_span(data).number(16), 0x100U);
  data.parent_is_remote = true;
  EXPECT_EQ(encoded_span(data).number(16), 0x300U);
}

TEST(Encode, Status) {
  struct Case {
    StatusCode status;
    std::string bytes;  ///< of the Status message, in hex
  };
  for (const Case& one :
       {Case{StatusCode::kUnset, ""}, Case{StatusCode::kOk, "1801"}, Case{StatusCode::kError, "1204626f6f6d1802"}}) {
    SpanData data = span("step");
    data.status = one.status;
    data.status_description = "boom";
    EXPECT_EQ(hex(encoded_span(data).text(15)), one.bytes);
  }
}

TEST(Encode, EventsAndLinks) {
  SpanData data = span("step");
  data.events = {{"exception", 6500, {{"exception.type", std::string("ValueError")}}, 0}};
  data.links = {context(0xc3), context(0xc4, true)};
  const Message encoded = encoded_span(data);
  const Message event = encoded.message(11);
  EXPECT_EQ(event.number(1), 1'800'000'000'000'001'500U);
  EXPECT_EQ(event.text(2), "exception");
  EXPECT_EQ(event.message(3).text(1), "exception.type");
  const auto links = encoded.messages(13);
  ASSERT_EQ(links.size(), 2U);
  EXPECT_EQ(hex(links[0].text(1)), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(hex(links[0].text(2)), "00000000000000c3");
  EXPECT_EQ(links[0].number(6), 0x100U);
  EXPECT_EQ(links[1].number(6), 0x300U);
}

TEST(Encode, AttributeTypes) {
  struct Case {
    StoredValue value;
    std::string bytes;  ///< of the AnyValue, in hex
  };
  const Case cases[] = {
      {std::string("a"), "0a0161"},
      {std::string(), "0a00"},  // an empty text is one all the same
      {true, "1001"},
      {false, "1000"},
      {std::int64_t{300}, "18ac02"},
      {std::int64_t{-1}, "18ffffffffffffffffff01"},
      {0.5, "21000000000000e03f"},
      {std::vector<std::int64_t>{1, 2}, "2a080a0218010a021802"},
      {std::vector<double>{0.5}, "2a0b0a0921000000000000e03f"},
      {std::vector<std::string>{"a", ""}, "2a090a030a01610a020a00"},
      {std::vector<bool>{true, false}, "2a080a0210010a021000"},
      {std::vector<std::int64_t>{}, "2a00"},
  };
  for (const Case& one : cases) {
    SpanData data = span("step");
    data.attributes = {{"key", one.value}};
    const Message pair = encoded_span(data).message(9);
    EXPECT_EQ(pair.text(1), "key");
    EXPECT_EQ(hex(pair.text(2)), one.bytes);
  }
}

TEST(Encode, OneBlockPerScopeWithItsSpansInOrder) {
  std::vector<SpanData> spans = {span("a"), span("b"), span("c"), span("d")};
  spans[1].scope = Scope::kLens;
  spans[3].scope = Scope::kLens;
  const Message request(encode_traces(spans, kResource));
  EXPECT_EQ(request.at({1, 1, 1}).text(1), "service.name");
  const auto blocks = request.message(1).messages(2);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].message(1).text(1), "nemo.lens.helpers");
  EXPECT_EQ(blocks[1].message(1).text(1), "nemo.lens");
  const auto names = [](const Message& block) {
    std::vector<std::string> found;
    for (const Message& item : block.messages(2)) found.push_back(item.text(5));
    return found;
  };
  EXPECT_THAT(names(blocks[0]), ElementsAre("a", "c"));
  EXPECT_THAT(names(blocks[1]), ElementsAre("b", "d"));
}

TEST(Encode, TextThatIsNotUtf8IsRepairedEverywhere) {
  SpanData data = span("n\xff");
  data.status = StatusCode::kError;
  data.status_description = "d\xc3";
  data.attributes = {{"k\xfe", std::string("v\xe2\x82")}};
  const Message encoded = encoded_span(data);
  EXPECT_EQ(encoded.text(5), "n\uFFFD");
  EXPECT_EQ(encoded.message(15).text(2), "d\uFFFD");
  EXPECT_EQ(encoded.message(9).text(1), "k\uFFFD");
  EXPECT_EQ(encoded.at({9, 2}).text(1), "v\uFFFD");
}

TEST(Utf8, ValidityAndRepair) {
  struct Case {
    std::string text;
    std::string repaired;
  };
  const Case cases[] = {
      {"", ""},
      {"plain text of more than eight bytes", "plain text of more than eight bytes"},
      {"häuser 語 🚂", "häuser 語 🚂"},
      {"\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf", "\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"},
      {"12345678\x80", "12345678\uFFFD"},                // stray continuation
      {"\xc0\xaf", "\uFFFD\uFFFD"},                      // overlong
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},            // overlong
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},            // surrogate
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond U+10FFFF
      {"\xf0\x9f\x9a", "\uFFFD"},                        // cut within a character
      {"\xe2\x82"
       "a\xf0\x9f"
       "b",
       "\uFFFD"
       "a\uFFFD"
       "b"},  // each begun character once
  };
  for (const Case& one : cases) {
    EXPECT_EQ(is_utf8(one.text), one.text == one.repaired) << hex(one.text);
    EXPECT_EQ(repair_utf8(one.text), one.repaired) << hex(one.text);
  }
}

Message encoded_metric(MetricData metric) {
  return Message(encode_metrics({{"nemo.lens", {std::move(metric)}}}, kResource)).at({1, 2, 2});
}

template <typename Point>
Point point() {
  Point value;
  value.attributes = {{"phase", std::string("train")}};
  value.start_ns = 100;
  value.time_ns = 200;
  return value;
}

TEST(Encode, Gauge) {
  auto value = point<NumberPoint>();
  value.start_ns = 0;
  value.value = 2.5;
  const Message metric = encoded_metric({"loss", "of the model", "1", GaugeData{{value}}});
  EXPECT_EQ(metric.text(1), "loss");
  EXPECT_EQ(metric.text(2), "of the model");
  EXPECT_EQ(metric.text(3), "1");
  const Message encoded = metric.at({5, 1});
  EXPECT_FALSE(encoded.has(2));
  EXPECT_EQ(encoded.number(3), 200U);
  EXPECT_EQ(encoded.real(4), 2.5);
  EXPECT_FALSE(encoded.has(6));
  EXPECT_EQ(encoded.message(7).text(1), "phase");
}

TEST(Encode, SumWithExemplars) {
  auto value = point<NumberPoint>();
  value.value = std::int64_t{-7};
  value.exemplars = {{150, 0.25, context(0xa1)}, {160, std::int64_t{4}, {}}};
  const Message metric = encoded_metric({"tokens", "", "", SumData{{value}, Temporality::kDelta, true}});
  EXPECT_FALSE(metric.has(2));
  const Message sum = metric.message(7);
  EXPECT_EQ(sum.number(2), 1U);
  EXPECT_EQ(sum.number(3), 1U);
  const Message encoded = sum.message(1);
  EXPECT_EQ(encoded.number(2), 100U);
  EXPECT_EQ(encoded.number(6), static_cast<std::uint64_t>(-7));
  const auto exemplars = encoded.messages(5);
  ASSERT_EQ(exemplars.size(), 2U);
  EXPECT_EQ(exemplars[0].number(2), 150U);
  EXPECT_EQ(exemplars[0].real(3), 0.25);
  EXPECT_EQ(hex(exemplars[0].text(4)), "00000000000000a1");
  EXPECT_EQ(hex(exemplars[0].text(5)), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(exemplars[1].number(6), 4U);
  EXPECT_FALSE(exemplars[1].has(4) || exemplars[1].has(5));
  EXPECT_FALSE(encoded_metric({"q", "", "", SumData{{value}, Temporality::kDelta, false}}).message(7).has(3));
}

TEST(Encode, Histogram) {
  auto value = point<HistogramPoint>();
  value.count = 3;
  value.sum = 7.5;
  value.max = 5;
  value.bucket_counts = {1, 2};
  value.bounds = {0.5};
  const Message histogram = encoded_metric({"h", "", "s", HistogramData{{value}, Temporality::kCumulative}}).message(9);
  EXPECT_EQ(histogram.number(2), 2U);
  const Message encoded = histogram.message(1);
  EXPECT_EQ(encoded.number(4), 3U);
  EXPECT_EQ(encoded.real(5), 7.5);
  EXPECT_EQ(hex(encoded.text(6)), "01000000000000000200000000000000");
  EXPECT_EQ(hex(encoded.text(7)), "000000000000e03f");
  EXPECT_FALSE(encoded.has(11));
  EXPECT_EQ(encoded.real(12), 5);
  EXPECT_EQ(encoded.message(9).text(1), "phase");
}

TEST(Encode, ExponentialHistogram) {
  auto value = point<ExponentialHistogramPoint>();
  value.count = 4;
  value.scale = -2;
  value.zero_count = 1;
  value.min = -1;
  value.max = 2;
  value.positive = {-3, {1, 300}};
  const Message data =
      encoded_metric({"e", "", "", ExponentialHistogramData{{value}, Temporality::kDelta}}).message(10);
  EXPECT_EQ(data.number(2), 1U);
  const Message encoded = data.message(1);
  EXPECT_EQ(encoded.message(1).text(1), "phase");
  EXPECT_EQ(encoded.number(6), 3U);  // zigzag of -2
  EXPECT_EQ(encoded.number(7), 1U);
  EXPECT_EQ(hex(encoded.text(8)),
            "08051203"
            "01ac02");  // zigzag of -3; packed 1, 300
  EXPECT_FALSE(encoded.has(9));
  EXPECT_EQ(encoded.real(12), -1);
  EXPECT_EQ(encoded.real(13), 2);
}

TEST(Encode, MetricsWithoutPointsAreLeftOut) {
  const MetricsData metrics = {
      {"empty", {{"a", "", "", SumData{}}}},
      {"full", {{"b", "", "", GaugeData{}}, {"c", "", "", GaugeData{{point<NumberPoint>()}}}}}};
  const auto blocks = Message(encode_metrics(metrics, kResource)).message(1).messages(2);
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].message(1).text(1), "full");
  EXPECT_EQ(blocks[0].message(2).text(1), "c");
}

TEST(Encode, LogsWithAndWithoutSpan) {
  LogData log;
  log.time_ns = 100;
  log.observed_time_ns = 200;
  log.severity = Severity::kError;
  log.severity_text = "ERROR";
  log.body = "failed";
  log.scope = "pharos.checkpoint";
  log.attributes = {{"code.line.number", std::int64_t{95}}};
  log.num_dropped_attributes = 2;
  log.context = context(0xa1);
  LogData bare;
  bare.scope = "pharos";
  const auto blocks = Message(encode_logs(std::vector{log, bare}, kResource)).message(1).messages(2);
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].message(1).text(1), "pharos.checkpoint");
  const Message encoded = blocks[0].message(2);
  EXPECT_EQ(encoded.number(1), 100U);
  EXPECT_EQ(encoded.number(11), 200U);
  EXPECT_EQ(encoded.number(2), 17U);
  EXPECT_EQ(encoded.text(3), "ERROR");
  EXPECT_EQ(encoded.message(5).text(1), "failed");
  EXPECT_EQ(encoded.message(6).text(1), "code.line.number");
  EXPECT_EQ(encoded.number(7), 2U);
  EXPECT_EQ(encoded.number(8), 3U);
  EXPECT_EQ(hex(encoded.text(9)), "0102030405060708090a0b0c0d0e0f10");
  EXPECT_EQ(hex(encoded.text(10)), "00000000000000a1");
  const Message second = blocks[1].message(2);
  EXPECT_FALSE(second.has(2) || second.has(8) || second.has(9) || second.has(10));
}

TEST(Encode, NothingIsOneEmptyResourceBlock) {
  const Message request(encode_logs({}, kResource));
  EXPECT_THAT(request.message(1).messages(2), IsEmpty());
}

}  // namespace
}  // namespace pharos::lens::otlp
