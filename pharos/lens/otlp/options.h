// Where and how OTLP goes: the OTEL_EXPORTER_OTLP_* variables (OpenTelemetry specification, "OTLP Exporter
// Configuration"; lens.md section 8.3).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace pharos::lens::otlp {

enum class Signal : std::uint8_t { kTraces, kMetrics, kLogs };
inline constexpr int kNumSignals = 3;
/// "traces", "metrics", "logs".
const char* signal_name(Signal signal);

enum class Protocol : std::uint8_t { kGrpc, kHttpProtobuf };
enum class Compression : std::uint8_t { kNone, kGzip };

/// One signal's endpoint. `url` is complete: for HTTP with /v1/traces, for gRPC scheme, host and port only.
struct SignalOptions {
  Protocol protocol = Protocol::kGrpc;
  std::string url;
  bool use_tls = false;
  std::vector<std::pair<std::string, std::string>> headers;  ///< names in lower case, decoded, in order
  std::chrono::milliseconds timeout{10000};                  ///< of one export, all tries together
  Compression compression = Compression::kNone;
  std::filesystem::path certificate;         ///< CA bundle; empty: the system's
  std::filesystem::path client_certificate;  ///< with client_key; empty: none
  std::filesystem::path client_key;
};

/// By Signal.
using Options = std::array<SignalOptions, kNumSignals>;

/// From the environment of the process. Values that no one can obey (unknown protocol, a file that is not there, a URL
/// that is none) are a UserError naming the variable; doubtful ones are obeyed as far as possible and said in
/// `warnings`, one sentence each.
///
/// Where implementations differ: _TIMEOUT is milliseconds, as specified, for whole numbers from 100 on; smaller or
/// fractional ones are read as seconds, as the Python SDK reads them, with a warning. http/json sends protobuf, with a
/// warning. Credentials of a URL become an authorization header, so that `url` may be shown.
Options options_from_environment(std::vector<std::string>& warnings);

}  // namespace pharos::lens::otlp
