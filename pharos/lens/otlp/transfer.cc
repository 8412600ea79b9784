#include "pharos/lens/otlp/transfer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <ctime>

#include "pharos/base/error.h"
#include "pharos/lens/otlp/gzip.h"

namespace pharos::lens::otlp {
namespace {

constexpr const char* kUserAgent = "OTel-OTLP-Exporter-Pharos/0.1.0";

const char* grpc_path(Signal signal) {
  switch (signal) {
    case Signal::kTraces:
      return "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    case Signal::kMetrics:
      return "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    case Signal::kLogs:
      return "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
  }
  return "";
}

template <typename Value>
void set_option(CURL* handle, CURLoption option, Value value) {
  const CURLcode code = curl_easy_setopt(handle, option, value);
  PHAROS_CHECK(code == CURLE_OK, "libcurl refuses option " + std::to_string(option) + ": " + curl_easy_strerror(code));
}

std::size_t take_header(char* data, std::size_t size, std::size_t count, void* answer) {
  static_cast<Answer*>(answer)->add_header_line(std::string_view(data, size * count));
  return size * count;
}

std::size_t take_body(char* data, std::size_t size, std::size_t count, void* answer) {
  static_cast<Answer*>(answer)->add_body(std::string_view(data, size * count));
  return size * count;
}

/// A peer that vanished without a word (power loss, a firewall that forgot) must not keep a pooled connection alive:
/// the kernel gives it up once bytes stay unacknowledged for this long.
int limit_silence(void*, curl_socket_t descriptor, curlsocktype) {
  constexpr unsigned int kLongestSilenceMs = 10000;
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &kLongestSilenceMs, sizeof(kLongestSilenceMs));
  return CURL_SOCKOPT_OK;
}

/// libcurl 7.88 begins HTTP/2 anew on a plaintext connection that speaks it already, and fails: there each request has
/// a connection of its own. 8.0 and the versions before 7.88 share one.
bool shares_plaintext_http2() {
  constexpr unsigned int kFirstBroken = 0x075800, kFirstSound = 0x080000;
  static const unsigned int version = curl_version_info(CURLVERSION_NOW)->version_num;
  return version < kFirstBroken || version >= kFirstSound;
}

/// With a colon libcurl would leave an empty one out.
std::string header_line(const std::string& name, const std::string& value) {
  return value.empty() ? name + ";" : name + ": " + value;
}

bool is_tls_fault(CURLcode code, const std::string& detail) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_CLIENTCERT:
    case CURLE_USE_SSL_FAILED:
      return true;
    // The handshake broke. A message of the TLS library ("error:…") is final; a lost connection is worth another try.
    // With TLS 1.3 a server refuses the client's certificate after the handshake, as an alert in place of the answer.
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
      return detail.find("error:") != std::string::npos || detail.find("alert") != std::string::npos;
    default:
      return false;
  }
}

bool is_passing_fault(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_PROXY:
      return true;
    default:
      return false;
  }
}

}  // namespace

Transfer::Transfer(const SignalOptions& options, Signal signal, const std::string& body,
                   std::chrono::milliseconds limit, bool needs_new_connection)
    : options_(options), handle_(curl_easy_init()) {
  PHAROS_CHECK(handle_ != nullptr, "libcurl has no memory for a transfer");
  const bool is_grpc = options.protocol == Protocol::kGrpc;
  const std::string url = options.url + (is_grpc ? grpc_path(signal) : "");
  set_option(handle(), CURLOPT_URL, url.c_str());
  set_common(body, limit, needs_new_connection);
  if (options.use_tls) set_tls();
  set_headers(limit);
  if (is_grpc) {
    set_http2();
  } else {
    set_option(handle(), CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  }
}

void Transfer::set_http2() {
  set_option(handle(), CURLOPT_HTTP_VERSION,
             static_cast<long>(options_.use_tls ? CURL_HTTP_VERSION_2TLS : CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE));
  set_option(handle(), CURLOPT_PIPEWAIT, 1L);         // share a connection that is still being made
  set_option(handle(), CURLOPT_HTTPPROXYTUNNEL, 1L);  // a proxy that only forwards does not know HTTP/2
  if (!options_.use_tls && !shares_plaintext_http2()) {
    set_option(handle(), CURLOPT_FRESH_CONNECT, 1L);
    set_option(handle(), CURLOPT_FORBID_REUSE, 1L);
  }
}

void Transfer::set_common(const std::string& body, std::chrono::milliseconds limit, bool needs_new_connection) {
  set_option(handle(), CURLOPT_NOSIGNAL, 1L);
  set_option(handle(), CURLOPT_QUICK_EXIT, 1L);  // giving up on a name look-up must not wait for it
  set_option(handle(), CURLOPT_PROTOCOLS_STR, "http,https");
  set_option(handle(), CURLOPT_ERRORBUFFER, error_text_.data());
  set_option(handle(), CURLOPT_HEADERFUNCTION, &take_header);
  set_option(handle(), CURLOPT_HEADERDATA, static_cast<void*>(&answer_));
  set_option(handle(), CURLOPT_WRITEFUNCTION, &take_body);
  set_option(handle(), CURLOPT_WRITEDATA, static_cast<void*>(&answer_));
  set_option(handle(), CURLOPT_SOCKOPTFUNCTION, &limit_silence);
  set_option(handle(), CURLOPT_TCP_KEEPALIVE, 1L);
  set_option(handle(), CURLOPT_TIMEOUT_MS, static_cast<long>(limit.count()));
  set_option(handle(), CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limit.count()));
  set_option(handle(), CURLOPT_FRESH_CONNECT, static_cast<long>(needs_new_connection));
  set_option(handle(), CURLOPT_POST, 1L);
  set_option(handle(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  set_option(handle(), CURLOPT_POSTFIELDS, body.data());
}

void Transfer::set_tls() {
  if (!options_.certificate.empty()) set_option(handle(), CURLOPT_CAINFO, options_.certificate.c_str());
  if (!options_.client_certificate.empty()) {
    set_option(handle(), CURLOPT_SSLCERT, options_.client_certificate.c_str());
    set_option(handle(), CURLOPT_SSLKEY, options_.client_key.c_str());
  }
}

void Transfer::add_header(const std::string& line) {
  curl_slist* const list = curl_slist_append(headers_.get(), line.c_str());
  PHAROS_CHECK(list != nullptr, "libcurl has no memory for a header");
  (void)headers_.release();  // the same list, or none
  headers_.reset(list);
}

void Transfer::set_headers(std::chrono::milliseconds limit) {
  const bool is_compressed = options_.compression == Compression::kGzip;
  set_option(handle(), CURLOPT_USERAGENT, kUserAgent);  // one of the options' headers replaces it
  if (options_.protocol == Protocol::kGrpc) {
    add_header("Content-Type: application/grpc");
    add_header("TE: trailers");
    add_header("grpc-timeout: " + std::to_string(limit.count()) + "m");
    if (is_compressed) add_header("grpc-encoding: gzip");
  } else {
    add_header("Content-Type: application/x-protobuf");
    if (is_compressed) add_header("Content-Encoding: gzip");
  }
  add_header("Accept:");  // libcurl's */* says nothing
  add_header("Expect:");  // or libcurl waits a second for receivers that know no "100 Continue"
  for (const auto& [name, value] : options_.headers) add_header(header_line(name, value));
  set_option(handle(), CURLOPT_HTTPHEADER, headers_.get());
}

Verdict Transfer::verdict(CURLcode code) const {
  if (code != CURLE_OK) return judge_error(code, error_text_.data(), options_.protocol);
  Answer answer = answer_;
  curl_easy_getinfo(handle(), CURLINFO_RESPONSE_CODE, &answer.http_status);
  return judge(options_.protocol, answer, std::time(nullptr));
}

std::string make_body(const SignalOptions& options, std::string message) {
  const bool is_compressed = options.compression == Compression::kGzip;
  if (is_compressed) message = gzip(message);
  return options.protocol == Protocol::kGrpc ? grpc_frame(message, is_compressed) : message;
}

Verdict judge_error(CURLcode code, const std::string& detail, Protocol protocol) {
  const std::string text = detail.empty() ? curl_easy_strerror(code) : detail;
  if (is_tls_fault(code, detail)) {
    return {.fate = Fate::kRefused,
            .message = "TLS: " + text +
                       " (OTEL_EXPORTER_OTLP_CERTIFICATE names the authority to trust, _CLIENT_CERTIFICATE and "
                       "_CLIENT_KEY what to show)"};
  }
  if (!is_passing_fault(code)) return {.fate = Fate::kRefused, .message = text};
  const bool is_http2_fault = code == CURLE_HTTP2 && protocol == Protocol::kGrpc;
  return {.fate = Fate::kRetry, .message = text + (is_http2_fault ? " (is this endpoint one of OTLP over gRPC?)" : "")};
}

}  // namespace pharos::lens::otlp
