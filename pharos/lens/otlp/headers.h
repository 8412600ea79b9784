// Header lists of OTEL_EXPORTER_OTLP_HEADERS (OpenTelemetry specification, "Specifying headers via environment
// variables"): W3C Baggage without properties. Values are secrets: no message repeats one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pharos::lens::otlp {

using Headers = std::vector<std::pair<std::string, std::string>>;

/// `text` with %XX decoded; a % that begins no such pair stays.
std::string percent_decode(std::string_view text);

/// Reads "name=value,name=value" of `variable`: names in lower case, both decoded and trimmed; a name given twice has
/// its last value. An entry that cannot be a header, or one that this sender sets itself, is left out and said in
/// `warnings` by its position and, if it has a proper one, its name.
Headers parse_headers(std::string_view text, std::string_view variable, std::vector<std::string>& warnings);

/// "Basic …" of RFC 7617.
std::string basic_authorization(std::string_view user, std::string_view password);

}  // namespace pharos::lens::otlp
