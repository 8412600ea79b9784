#include "pharos/lens/otlp/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <string_view>

#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/otlp/headers.h"
#include "pharos/lens/otlp/url.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens::otlp {
namespace {

using base::UserError;

constexpr const char* kPrefix = "OTEL_EXPORTER_OTLP_";
constexpr std::int64_t kLongestTimeoutMs = std::int64_t{24} * 3600 * 1000;

/// A variable that is set. Empty ones count as unset (OpenTelemetry specification).
struct Setting {
  std::string variable;
  std::string value;
  bool is_of_signal = false;
};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string changed_case(std::string text, int (*change)(int)) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [change](unsigned char c) { return static_cast<char>(change(c)); });
  return text;
}

std::optional<Setting> read_variable(const std::string& variable, bool is_of_signal) {
  std::string value = trimmed(base::get_environment(variable).value_or(""));
  if (value.empty()) return std::nullopt;
  return Setting{variable, std::move(value), is_of_signal};
}

/// The signal's own variable, else the general one.
std::optional<Setting> find_setting(Signal signal, const std::string& suffix) {
  const std::string name = changed_case(signal_name(signal), std::toupper);
  if (auto own = read_variable(kPrefix + name + "_" + suffix, true)) return own;
  return read_variable(kPrefix + suffix, false);
}

/// A general variable is read once for each signal but said once.
void warn(std::vector<std::string>& warnings, std::string text) {
  if (std::find(warnings.begin(), warnings.end(), text) == warnings.end()) warnings.push_back(std::move(text));
}

Protocol read_protocol(Signal signal, std::vector<std::string>& warnings) {
  const auto setting = find_setting(signal, "PROTOCOL");
  if (!setting) return Protocol::kGrpc;
  const std::string value = changed_case(setting->value, std::tolower);
  if (value == "grpc") return Protocol::kGrpc;
  if (value == "http/protobuf") return Protocol::kHttpProtobuf;
  if (value == "http/json") {
    warn(warnings, setting->variable + " = http/json: protobuf is sent all the same, as with http/protobuf.");
    return Protocol::kHttpProtobuf;
  }
  const auto nearest = base::nearest_names(value, {"grpc", "http/protobuf"}, 1);
  throw UserError({.what = setting->variable + " = " + shown(setting->value) + " is not a protocol of OTLP.",
                   .where = "environment",
                   .fix = nearest.empty() ? "Use grpc or http/protobuf." : "Did you mean " + nearest[0] + "?"});
}

[[noreturn]] void fail_endpoint(const Setting& setting, const std::string& problem, Protocol protocol) {
  const bool is_grpc = protocol == Protocol::kGrpc;
  throw UserError(
      {.what = setting.variable + " is not a URL that telemetry can be sent to: " + problem + ".",
       .where = "environment",
       .why = "The value is not repeated here, it may hold a password.",
       .fix = std::string("Give one like ") + (is_grpc ? "http://collector:4317" : "http://collector:4318") + "."});
}

/// Whether gRPC to `url` is encrypted (lens.md section 8.3): https always; else _INSECURE says so, if it is set; else
/// only a URL that says http is not.
bool grpc_uses_tls(Signal signal, const Url& url, bool has_scheme, std::vector<std::string>& warnings) {
  if (has_scheme && url.scheme == "https") return true;
  if (const auto setting = find_setting(signal, "INSECURE")) {
    const std::string value = changed_case(setting->value, std::tolower);
    if (value != "true" && value != "false") {
      warn(warnings, setting->variable + " is neither true nor false: it is read as false, so TLS is used.");
    }
    return value != "true";
  }
  return !has_scheme;
}

void read_grpc_endpoint(Signal signal, SignalOptions& options, Url& url, std::vector<std::string>& warnings) {
  const Setting setting = find_setting(signal, "ENDPOINT").value_or(Setting{"", "http://localhost:4317"});
  const bool has_scheme = setting.value.find("://") != std::string::npos;
  std::string problem;
  if (!parse_url(setting.value, "https", url, problem)) fail_endpoint(setting, problem, Protocol::kGrpc);
  options.use_tls = grpc_uses_tls(signal, url, has_scheme, warnings);
  if (url.path != "/" || !url.query.empty()) {
    warn(warnings, setting.variable +
                       ": the path is not used, gRPC has its own. For an HTTP endpoint set OTEL_EXPORTER_OTLP_PROTOCOL "
                       "to http/protobuf.");
  }
  url.scheme = options.use_tls ? "https" : "http";
  if (url.port.empty()) {
    warn(warnings, setting.variable + " has no port: " + (options.use_tls ? "443" : "80") +
                       " is used; collectors usually take OTLP over gRPC at 4317.");
  }
  url.path.clear();
  url.query.clear();
}

void read_http_endpoint(Signal signal, SignalOptions& options, Url& url) {
  const Setting setting = find_setting(signal, "ENDPOINT").value_or(Setting{"", "http://localhost:4318"});
  std::string problem;
  if (!parse_url(setting.value, "", url, problem)) fail_endpoint(setting, problem, Protocol::kHttpProtobuf);
  options.use_tls = url.scheme == "https";
  if (setting.is_of_signal) return;
  if (url.path.back() != '/') url.path += '/';
  url.path += std::string("v1/") + signal_name(signal);
}

std::chrono::milliseconds read_timeout(Signal signal, std::vector<std::string>& warnings) {
  constexpr std::chrono::milliseconds kDefault{10000};
  constexpr double kSmallestInMilliseconds = 100;
  const auto setting = find_setting(signal, "TIMEOUT");
  if (!setting) return kDefault;
  const std::string& text = setting->value;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(number);
  const bool is_whole = text.find_first_not_of("0123456789") == std::string::npos;
  const bool is_in_seconds = !is_whole || number < kSmallestInMilliseconds;
  const double milliseconds = is_in_seconds ? number * 1000 : number;
  if (!is_number || milliseconds < 1 || milliseconds > static_cast<double>(kLongestTimeoutMs)) {
    throw UserError({.what = setting->variable + " = " + shown(text) + " is not a time limit.",
                     .where = "environment",
                     .why = "It is the number of milliseconds that one export may take, at most a day.",
                     .fix = "Give for example 10000."});
  }
  if (is_in_seconds) {
    warn(warnings, setting->variable + " = " + shown(text) +
                       " is read as seconds, as the Python SDK reads it. The OpenTelemetry specification means "
                       "milliseconds: whole numbers from 100 on are read so.");
  }
  return std::chrono::milliseconds(std::llround(milliseconds));
}

Compression read_compression(Signal signal) {
  const auto setting = find_setting(signal, "COMPRESSION");
  if (!setting) return Compression::kNone;
  const std::string value = changed_case(setting->value, std::tolower);
  if (value == "none") return Compression::kNone;
  if (value == "gzip") return Compression::kGzip;
  throw UserError(
      {.what = setting->variable + " = " + shown(setting->value) + " is not a compression that can be used.",
       .where = "environment",
       .why = value == "deflate" ? "gRPC receivers do not know it, and gzip is deflate with a checksum." : "",
       .fix = "Use gzip or none."});
}

std::filesystem::path read_file_setting(Signal signal, const std::string& suffix, bool is_used,
                                        std::vector<std::string>& warnings) {
  const auto setting = find_setting(signal, suffix);
  if (!setting) return {};
  if (std::error_code error; std::filesystem::is_directory(setting->value, error) || !std::ifstream(setting->value)) {
    throw UserError({.what = setting->variable + ": the file " + shown(setting->value) + " cannot be read.",
                     .where = "environment",
                     .fix = "Give the path of a PEM file that this process may read, or unset the variable."});
  }
  if (is_used) return setting->value;
  warn(warnings, setting->variable + " is not used: the endpoint of " + signal_name(signal) + " is not one of TLS.");
  return {};
}

void read_tls_files(Signal signal, SignalOptions& options, std::vector<std::string>& warnings) {
  options.certificate = read_file_setting(signal, "CERTIFICATE", options.use_tls, warnings);
  options.client_certificate = read_file_setting(signal, "CLIENT_CERTIFICATE", options.use_tls, warnings);
  options.client_key = read_file_setting(signal, "CLIENT_KEY", options.use_tls, warnings);
  if (options.client_key.empty()) {
    options.client_key = options.client_certificate;  // one PEM file may hold both
  } else if (options.client_certificate.empty()) {
    throw UserError({.what = find_setting(signal, "CLIENT_KEY")->variable + " is set without a client certificate.",
                     .where = "environment",
                     .fix = "Set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE too, or unset the key."});
  }
}

SignalOptions read_signal(Signal signal, std::vector<std::string>& warnings) {
  SignalOptions options;
  options.protocol = read_protocol(signal, warnings);
  Url url;
  if (options.protocol == Protocol::kGrpc) {
    read_grpc_endpoint(signal, options, url, warnings);
  } else {
    read_http_endpoint(signal, options, url);
  }
  options.url = to_string(url);
  if (const auto setting = find_setting(signal, "HEADERS")) {
    std::vector<std::string> found;
    options.headers = parse_headers(setting->value, setting->variable, found);
    for (std::string& warning : found) warn(warnings, std::move(warning));
  }
  // Credentials of a URL travel as a header, so that `url` can be shown to anyone.
  const bool has_authorization = std::any_of(options.headers.begin(), options.headers.end(),
                                             [](const auto& header) { return header.first == "authorization"; });
  if (!(url.user.empty() && url.password.empty()) && !has_authorization) {
    options.headers.emplace_back("authorization", basic_authorization(url.user, url.password));
  }
  options.timeout = read_timeout(signal, warnings);
  options.compression = read_compression(signal);
  read_tls_files(signal, options, warnings);
  return options;
}

}  // namespace

const char* signal_name(Signal signal) {
  switch (signal) {
    case Signal::kTraces:
      return "traces";
    case Signal::kMetrics:
      return "metrics";
    case Signal::kLogs:
      return "logs";
  }
  return "";
}

Options options_from_environment(std::vector<std::string>& warnings) {
  Options options;
  for (const Signal signal : {Signal::kTraces, Signal::kMetrics, Signal::kLogs}) {
    options[static_cast<std::size_t>(signal)] = read_signal(signal, warnings);
  }
  return options;
}

}  // namespace pharos::lens::otlp
