#include "pharos/lens/otlp/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/lens/otlp/transfer.h"

namespace pharos::lens::otlp {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr std::int64_t kNow = 1'800'000'000;  // Fri, 15 Jan 2027 08:00:00 GMT

/// Export…ServiceResponse with two items rejected, "why".
const std::string kPartial("\x0a\x07\x08\x02\x12\x03why", 9);
const std::string kWarning("\x0a\x05\x12\x03why", 7);
/// Base64 of a google.rpc.Status {code: 8, message: "m", details: [RetryInfo {retry_delay: 1.5 s}]}.
const std::string kRetryInfo = "CAgSAW0aNgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIKCggIARCAyrXuAQ";

Answer http(long status, std::string body = "", std::string retry_after = "") {
  Answer answer;
  answer.http_status = status;
  answer.body = std::move(body);
  answer.content_type = "application/x-protobuf";
  answer.retry_after = std::move(retry_after);
  return answer;
}

Answer grpc(std::string status, std::string message = "", std::string details = "", std::string body = "") {
  Answer answer;
  answer.http_status = 200;
  answer.content_type = "application/grpc";
  answer.grpc_status = std::move(status);
  answer.grpc_message = std::move(message);
  answer.grpc_details = std::move(details);
  answer.body = std::move(body);
  return answer;
}

struct Case {
  Answer answer;
  Fate fate;
  std::string message;  ///< part of it; "" means there is none
  std::uint64_t num_rejected = 0;
  std::optional<milliseconds> retry_after = {};
};

void expect_verdict(Protocol protocol, const Case& one) {
  const Verdict verdict = judge(protocol, one.answer, kNow);
  SCOPED_TRACE(verdict.message);
  EXPECT_EQ(verdict.fate, one.fate);
  EXPECT_THAT(verdict.message, HasSubstr(one.message));
  EXPECT_EQ(verdict.message.empty(), one.message.empty());
  EXPECT_EQ(verdict.num_rejected, one.num_rejected);
  EXPECT_EQ(verdict.retry_after, one.retry_after);
}

TEST(Answer, OverHttp) {
  const Case cases[] = {
      {http(200), Fate::kDelivered, ""},
      {http(204), Fate::kDelivered, ""},
      {http(200, kPartial), Fate::kDelivered, "rejected 2: why", 2},
      {http(200, kWarning), Fate::kDelivered, "warns: why"},
      {http(200, "\xff\xff\xff"), Fate::kDelivered, "not one of OTLP"},
      {http(400,
            "\x12\x03"
            "bad"),
       Fate::kRefused, "HTTP status 400: bad"},
      {http(404, "\xff\xff"), Fate::kRefused, "HTTP status 404"},
      {http(500), Fate::kRefused, "HTTP status 500"},
      {http(301), Fate::kRefused, "HTTP status 301"},
      {http(408), Fate::kRetry, "408"},
      {http(429), Fate::kRetry, "429"},
      {http(502), Fate::kRetry, "502"},
      {http(504), Fate::kRetry, "504"},
      {http(503, "", "2"), Fate::kRetry, "503", 0, milliseconds(2000)},
      {http(503, "", "0.25"), Fate::kRetry, "503", 0, milliseconds(250)},
      {http(503, "", "-3"), Fate::kRetry, "503", 0, milliseconds(0)},
      {http(503, "", "1e300"), Fate::kRetry, "503", 0, milliseconds(366LL * 24 * 3600 * 1000)},
      {http(503, "", "Fri, 15 Jan 2027 08:00:05 GMT"), Fate::kRetry, "503", 0, milliseconds(5000)},
      {http(503, "", "Fri, 15 Jan 2027 07:00:00 GMT"), Fate::kRetry, "503", 0, milliseconds(0)},
      {http(503, "", "soon"), Fate::kRetry, "503"},
      {http(400, "", "2"), Fate::kRefused, "400"},
  };
  for (const Case& one : cases) expect_verdict(Protocol::kHttpProtobuf, one);
}

TEST(Answer, InJson) {
  struct JsonCase {
    std::string body;
    std::string message;
    std::uint64_t num_rejected = 0;
  };
  for (const JsonCase& one : {JsonCase{"{}", ""}, JsonCase{R"({"partialSuccess":{}})", ""},
                              JsonCase{R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":"e"}})", "3: e", 3},
                              JsonCase{R"({"partialSuccess":{"rejectedLogRecords":4}})", "rejected 4", 4},
                              JsonCase{"[]", "not one of OTLP"}, JsonCase{"{", "not one of OTLP"}}) {
    Answer answer = http(200, one.body);
    answer.content_type = "application/json; charset=utf-8";
    expect_verdict(Protocol::kHttpProtobuf, {answer, Fate::kDelivered, one.message, one.num_rejected});
  }
}

TEST(Answer, OverGrpc) {
  Answer proxy = http(503, "<html>busy</html>", "3");
  proxy.content_type = "text/html";
  Answer page = http(404, "<html>lost</html>");
  page.content_type = "text/html";
  const Case cases[] = {
      {grpc("0", "", "", grpc_frame("", false)), Fate::kDelivered, ""},
      {grpc("0", "", "", grpc_frame(kPartial, false)), Fate::kDelivered, "rejected 2: why", 2},
      {grpc("0", "", "", grpc_frame(kPartial, true)), Fate::kDelivered, "not one of OTLP"},
      {grpc("0", "", "", "\xff"), Fate::kDelivered, "not one of OTLP"},
      {grpc("0", "", "", grpc_frame("", false) + "x"), Fate::kDelivered, "not one of OTLP"},
      {grpc("1"), Fate::kRetry, "CANCELLED"},
      {grpc("3", "bad%3A%20%E8%AA%9E"), Fate::kRefused, "INVALID_ARGUMENT: bad: 語"},
      {grpc("4"), Fate::kRetry, "DEADLINE_EXCEEDED"},
      {grpc("7"), Fate::kRefused, "PERMISSION_DENIED"},
      {grpc("8"), Fate::kRefused, "RESOURCE_EXHAUSTED"},
      {grpc("8", "", kRetryInfo), Fate::kRetry, "RESOURCE_EXHAUSTED", 0, milliseconds(1500)},
      {grpc("10"), Fate::kRetry, "ABORTED"},
      {grpc("11"), Fate::kRetry, "OUT_OF_RANGE"},
      {grpc("12"), Fate::kRefused, "UNIMPLEMENTED"},
      {grpc("13"), Fate::kRefused, "INTERNAL"},
      {grpc("14", "", kRetryInfo + "=="), Fate::kRetry, "UNAVAILABLE", 0, milliseconds(1500)},
      {grpc("14", "", "!!"), Fate::kRetry, "UNAVAILABLE"},
      {grpc("15"), Fate::kRetry, "DATA_LOSS"},
      {grpc("16"), Fate::kRefused, "UNAUTHENTICATED"},
      {grpc("99"), Fate::kRefused, "gRPC status 99"},
      {grpc("x"), Fate::kRefused, "UNKNOWN"},
      {proxy, Fate::kRetry, "503: <html>busy", 0, milliseconds(3000)},
      {page, Fate::kRefused, "is this endpoint one of OTLP over gRPC?"},
  };
  for (const Case& one : cases) expect_verdict(Protocol::kGrpc, one);
}

TEST(Answer, OnlyTheBeginningIsShownOnOneLine) {
  const Verdict verdict = judge(Protocol::kHttpProtobuf, http(400, "a\r\nb\x01" + std::string(300, 'x')), kNow);
  EXPECT_THAT(verdict.message, HasSubstr("a  b x"));
  EXPECT_LT(verdict.message.size(), 240U);
}

TEST(Answer, HeaderLinesAndBody) {
  Answer answer;
  answer.add_header_line("HTTP/1.1 407 Proxy\r\n");
  answer.add_header_line("Retry-After: 9\r\n");
  answer.add_body("please log in");
  answer.add_header_line("HTTP/2 200\r\n");
  answer.add_header_line("Content-Type: application/grpc\r\n");
  answer.add_header_line("\r\n");
  answer.add_header_line("grpc-status:14\r\n");
  answer.add_header_line("GRPC-Message:  a: b \r\n");
  EXPECT_EQ(answer.retry_after + answer.body, "");
  EXPECT_EQ(answer.content_type, "application/grpc");
  EXPECT_EQ(answer.grpc_status, "14");
  EXPECT_EQ(answer.grpc_message, "a: b");
  for (int i = 0; i < 10; ++i) answer.add_body(std::string(10000, 'x'));
  EXPECT_EQ(answer.body.size(), Answer::kKeptBodyBytes);
  EXPECT_TRUE(answer.is_cut);
}

TEST(Answer, GrpcFrame) {
  EXPECT_EQ(grpc_frame("ab", false), std::string("\0\0\0\0\2ab", 7));
  EXPECT_EQ(grpc_frame(std::string(258, 'x'), true).substr(0, 5), std::string("\1\0\0\1\2", 5));
}

TEST(Answer, LibcurlErrors) {
  struct ErrorCase {
    CURLcode code;
    std::string detail;
    Fate fate;
    std::string message;
  };
  const ErrorCase cases[] = {
      {CURLE_COULDNT_RESOLVE_HOST, "", Fate::kRetry, "resolve"},
      {CURLE_COULDNT_CONNECT, "refused", Fate::kRetry, "refused"},
      {CURLE_OPERATION_TIMEDOUT, "", Fate::kRetry, "Timeout"},
      {CURLE_RECV_ERROR, "Recv failure: Connection reset by peer", Fate::kRetry, "reset"},
      {CURLE_PARTIAL_FILE, "", Fate::kRetry, "partial"},
      {CURLE_SSL_CONNECT_ERROR, "Connection reset by peer in connection", Fate::kRetry, "reset"},
      {CURLE_SSL_CONNECT_ERROR, "error:0A00010B:SSL routines::wrong version number", Fate::kRefused, "TLS: error"},
      {CURLE_RECV_ERROR, "SSL_read: error:0A00045C: alert certificate required", Fate::kRefused, "TLS: SSL_read"},
      {CURLE_PEER_FAILED_VERIFICATION, "self-signed", Fate::kRefused, "OTEL_EXPORTER_OTLP_CERTIFICATE"},
      {CURLE_HTTP2, "", Fate::kRetry, "is this endpoint one of OTLP over gRPC?"},
      {CURLE_UNSUPPORTED_PROTOCOL, "", Fate::kRefused, "protocol"},
  };
  for (const ErrorCase& one : cases) {
    const Verdict verdict = judge_error(one.code, one.detail, Protocol::kGrpc);
    EXPECT_EQ(verdict.fate, one.fate) << one.detail;
    EXPECT_THAT(verdict.message, HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace pharos::lens::otlp
