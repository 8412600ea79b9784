#include "pharos/lens/otlp/answer.h"

#include <curl/curl.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>

#include "pharos/lens/otlp/headers.h"
#include "pharos/lens/otlp/utf8.h"

namespace pharos::lens::otlp {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kShownBytes = 200;
constexpr std::size_t kFrameHeaderBytes = 5;
/// Later than any request can wait; keeps arithmetic on what receivers say far from overflow.
constexpr std::int64_t kLongestWaitSeconds = 366LL * 24 * 3600;

/// gRPC status codes, by number.
constexpr std::array<const char*, 17> kGrpcNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
enum GrpcCode {
  kCancelled = 1,
  kUnknown = 2,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kAborted = 10,
  kOutOfRange = 11,
  kUnavailable = 14,
  kDataLoss = 15
};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

/// The beginning of `text` on one line, as UTF-8 without control characters.
std::string readable(std::string_view text) {
  std::string shown = repair_utf8(text.substr(0, kShownBytes));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return std::string(trimmed(shown)) + (text.size() > kShownBytes ? "…" : "");
}

/// ": text", or nothing.
std::string as_reason(std::string_view text) {
  const std::string shown = readable(text);
  return shown.empty() ? "" : ": " + shown;
}

// ---- protobuf answers

struct PartialSuccess {
  std::int64_t num_rejected = 0;
  std::string message;
};

/// Export{Trace,Metrics,Logs}ServiceResponse: the three number their fields alike. Nothing if it is none.
std::optional<PartialSuccess> parse_response(std::string_view body) {
  PartialSuccess result;
  try {
    protozero::pbf_reader response(body.data(), body.size());
    while (response.next()) {
      if (response.tag_and_type() != protozero::tag_and_type(1, protozero::pbf_wire_type::length_delimited)) {
        response.skip();
        continue;
      }
      protozero::pbf_reader partial = response.get_message();
      while (partial.next()) {
        switch (partial.tag_and_type()) {
          case protozero::tag_and_type(1, protozero::pbf_wire_type::varint):
            result.num_rejected = partial.get_int64();
            break;
          case protozero::tag_and_type(2, protozero::pbf_wire_type::length_delimited):
            result.message = partial.get_string();
            break;
          default:
            partial.skip();
        }
      }
    }
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return result;
}

/// The same in OTLP's JSON, which receivers may send whatever they were asked. 64-bit integers are strings there.
std::optional<PartialSuccess> parse_json_response(std::string_view body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  PartialSuccess result;
  const auto partial = json.find("partialSuccess");
  if (partial == json.end() || !partial->is_object()) return result;
  for (const char* name : {"rejectedSpans", "rejectedDataPoints", "rejectedLogRecords"}) {
    const auto rejected = partial->find(name);
    if (rejected == partial->end()) continue;
    const std::string text = rejected->is_string() ? rejected->get<std::string>() : rejected->dump();
    std::from_chars(text.data(), text.data() + text.size(), result.num_rejected);
  }
  const auto message = partial->find("errorMessage");
  if (message != partial->end() && message->is_string()) result.message = message->get<std::string>();
  return result;
}

/// google.protobuf.Duration.
milliseconds parse_duration(protozero::pbf_reader duration) {
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;
  while (duration.next()) {
    switch (duration.tag_and_type()) {
      case protozero::tag_and_type(1, protozero::pbf_wire_type::varint):
        seconds = duration.get_int64();
        break;
      case protozero::tag_and_type(2, protozero::pbf_wire_type::varint):
        nanoseconds = duration.get_int32();
        break;
      default:
        duration.skip();
    }
  }
  seconds = std::clamp<std::int64_t>(seconds, 0, kLongestWaitSeconds);
  nanoseconds = std::clamp<std::int64_t>(nanoseconds, 0, 999'999'999);
  return milliseconds(seconds * 1000 + (nanoseconds + 999'999) / 1'000'000);
}

/// google.rpc.Status, as far as it is of use here.
struct RpcStatus {
  std::string message;
  std::optional<milliseconds> retry_delay;
};

void parse_detail(protozero::pbf_reader any, RpcStatus& status) {
  std::string type;
  protozero::data_view value;
  while (any.next()) {
    switch (any.tag_and_type()) {
      case protozero::tag_and_type(1, protozero::pbf_wire_type::length_delimited):
        type = any.get_string();
        break;
      case protozero::tag_and_type(2, protozero::pbf_wire_type::length_delimited):
        value = any.get_view();
        break;
      default:
        any.skip();
    }
  }
  if (!type.ends_with("/google.rpc.RetryInfo")) return;
  status.retry_delay = milliseconds(0);  // a message without the field is one of zero
  protozero::pbf_reader retry_info(value);
  while (retry_info.next()) {
    if (retry_info.tag_and_type() == protozero::tag_and_type(1, protozero::pbf_wire_type::length_delimited)) {
      status.retry_delay = parse_duration(retry_info.get_message());
    } else {
      retry_info.skip();
    }
  }
}

std::optional<RpcStatus> parse_rpc_status(std::string_view bytes) {
  RpcStatus status;
  try {
    protozero::pbf_reader reader(bytes.data(), bytes.size());
    while (reader.next()) {
      switch (reader.tag_and_type()) {
        case protozero::tag_and_type(2, protozero::pbf_wire_type::length_delimited):
          status.message = reader.get_string();
          break;
        case protozero::tag_and_type(3, protozero::pbf_wire_type::length_delimited):
          parse_detail(reader.get_message(), status);
          break;
        default:
          reader.skip();
      }
    }
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return status;
}

/// Bytes of base64 with or without padding (gRPC omits it); nothing if it is none.
std::optional<std::string> decode_base64(std::string text) {
  while (!text.empty() && text.back() == '=') text.pop_back();
  const std::size_t num_bytes = text.size() * 3 / 4;
  text.resize((text.size() + 3) / 4 * 4, '=');
  std::string bytes(text.size() / 4 * 3, '\0');
  const int num_decoded =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (num_decoded < 0) return std::nullopt;
  bytes.resize(num_bytes);
  return bytes;
}

// ---- verdicts

/// Retry-After: seconds, also with a fraction, or a date of HTTP. One in the past is zero.
std::optional<milliseconds> parse_retry_after(const std::string& text, std::int64_t wall_seconds) {
  if (text.empty()) return std::nullopt;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size()) {
    const time_t date = curl_getdate(text.c_str(), nullptr);
    if (date == -1) return std::nullopt;
    seconds = static_cast<double>(date - wall_seconds);
  }
  if (!(seconds > 0)) return milliseconds(0);
  return milliseconds(std::llround(std::min(seconds, static_cast<double>(kLongestWaitSeconds)) * 1000));
}

Verdict judge_success(const std::optional<PartialSuccess>& partial, const std::string& unreadable) {
  if (!partial) return {.message = unreadable};
  Verdict verdict{.num_rejected = static_cast<std::uint64_t>(std::max<std::int64_t>(partial->num_rejected, 0))};
  if (verdict.num_rejected > 0) {
    verdict.message = "the receiver rejected " + std::to_string(verdict.num_rejected) + as_reason(partial->message);
  } else if (!partial->message.empty()) {
    verdict.message = "the receiver warns" + as_reason(partial->message);
  }
  return verdict;
}

bool is_of_type(const Answer& answer, std::string_view type) { return answer.content_type.starts_with(type); }

bool is_retryable_http(long status) {
  return status == 408 || status == 429 || status == 502 || status == 503 || status == 504;
}

Verdict judge_http(const Answer& answer, std::int64_t wall_seconds) {
  if (answer.http_status >= 200 && answer.http_status < 300) {
    const auto partial = answer.is_cut                            ? std::nullopt
                         : is_of_type(answer, "application/json") ? parse_json_response(answer.body)
                                                                  : parse_response(answer.body);
    return judge_success(partial, "accepted with HTTP status " + std::to_string(answer.http_status) +
                                      ", but the answer is not one of OTLP" + as_reason(answer.body));
  }
  std::string reason = answer.body;
  if (is_of_type(answer, "application/x-protobuf")) {
    const auto status = parse_rpc_status(answer.body);
    if (status && !status->message.empty()) reason = status->message;
  }
  Verdict verdict{.fate = is_retryable_http(answer.http_status) ? Fate::kRetry : Fate::kRefused,
                  .message = "HTTP status " + std::to_string(answer.http_status) + as_reason(reason)};
  if (verdict.fate == Fate::kRetry) verdict.retry_after = parse_retry_after(answer.retry_after, wall_seconds);
  return verdict;
}

std::optional<PartialSuccess> parse_grpc_body(const Answer& answer) {
  if (answer.is_cut || answer.body.size() < kFrameHeaderBytes || answer.body[0] != 0) return std::nullopt;
  std::size_t length = 0;
  for (int i = 1; i <= 4; ++i) length = length << 8 | static_cast<unsigned char>(answer.body[i]);
  if (answer.body.size() - kFrameHeaderBytes != length) return std::nullopt;
  return parse_response(std::string_view(answer.body).substr(kFrameHeaderBytes));
}

bool is_retryable_grpc(int code, bool has_retry_info) {
  switch (code) {
    case kCancelled:
    case kDeadlineExceeded:
    case kAborted:
    case kOutOfRange:
    case kUnavailable:
    case kDataLoss:
      return true;
    case kResourceExhausted:
      return has_retry_info;
    default:
      return false;
  }
}

/// An answer of something that does not speak gRPC, such as a proxy.
Verdict judge_without_grpc_status(const Answer& answer, std::int64_t wall_seconds) {
  Verdict verdict{.fate = is_retryable_http(answer.http_status) ? Fate::kRetry : Fate::kRefused,
                  .message = "no gRPC status in an answer with HTTP status " + std::to_string(answer.http_status)};
  if (verdict.fate == Fate::kRetry) verdict.retry_after = parse_retry_after(answer.retry_after, wall_seconds);
  if (!is_of_type(answer, "application/grpc")) {
    verdict.message += as_reason(answer.body);
    if (verdict.fate == Fate::kRefused) verdict.message += " (is this endpoint one of OTLP over gRPC?)";
  }
  return verdict;
}

Verdict judge_grpc(const Answer& answer, std::int64_t wall_seconds) {
  if (answer.grpc_status.empty()) return judge_without_grpc_status(answer, wall_seconds);
  int code = kUnknown;
  const auto [end, error] =
      std::from_chars(answer.grpc_status.data(), answer.grpc_status.data() + answer.grpc_status.size(), code);
  if (error != std::errc() || end != answer.grpc_status.data() + answer.grpc_status.size()) code = kUnknown;
  if (code == 0) {
    return judge_success(parse_grpc_body(answer), "accepted with gRPC status OK, but the answer is not one of OTLP");
  }
  std::optional<RpcStatus> details;
  if (const auto bytes = decode_base64(answer.grpc_details)) details = parse_rpc_status(*bytes);
  const std::optional<milliseconds> retry_delay = details ? details->retry_delay : std::nullopt;
  const bool has_name = code > 0 && code < static_cast<int>(kGrpcNames.size());
  return {.fate = is_retryable_grpc(code, retry_delay.has_value()) ? Fate::kRetry : Fate::kRefused,
          .message = "gRPC status " + (has_name ? kGrpcNames[static_cast<std::size_t>(code)] : std::to_string(code)) +
                     as_reason(percent_decode(answer.grpc_message)),
          .retry_after = retry_delay};
}

}  // namespace

void Answer::add_header_line(std::string_view line) {
  if (line.starts_with("HTTP/")) {  // of the answer proper, after that of a proxy or "100 Continue"
    *this = Answer{};
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  std::string name(trimmed(line.substr(0, colon)));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string value(trimmed(line.substr(colon + 1)));
  if (name == "content-type") content_type = value;
  if (name == "retry-after") retry_after = value;
  if (name == "grpc-status") grpc_status = value;
  if (name == "grpc-message") grpc_message = value;
  if (name == "grpc-status-details-bin") grpc_details = value;
}

void Answer::add_body(std::string_view bytes) {
  const std::size_t room = kKeptBodyBytes - body.size();
  is_cut = is_cut || bytes.size() > room;
  body += bytes.substr(0, room);
}

Verdict judge(Protocol protocol, const Answer& answer, std::int64_t wall_seconds) {
  return protocol == Protocol::kGrpc ? judge_grpc(answer, wall_seconds) : judge_http(answer, wall_seconds);
}

std::string grpc_frame(std::string_view message, bool is_compressed) {
  std::string frame;
  frame.reserve(kFrameHeaderBytes + message.size());
  frame += static_cast<char>(is_compressed);
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(message.size() >> shift);
  frame += message;
  return frame;
}

}  // namespace pharos::lens::otlp
