// Log records as data (OTLP logs.proto).
#pragma once

#include <cstdint>
#include <string>

#include "pharos/lens/data/stored_value.h"
#include "pharos/lens/span.h"

namespace pharos::lens {

/// OpenTelemetry severity numbers.
enum class Severity : std::uint8_t { kUnspecified = 0, kDebug = 5, kInfo = 9, kWarn = 13, kError = 17, kFatal = 21 };

struct LogData {
  std::int64_t time_ns = 0;           ///< Unix, when it happened
  std::int64_t observed_time_ns = 0;  ///< Unix, when telemetry saw it
  Severity severity = Severity::kUnspecified;
  std::string severity_text;  ///< "DEBUG", "INFO", "WARN", "ERROR", "FATAL"
  std::string body;
  std::string scope;  ///< the logger's name
  StoredAttributes attributes;
  std::uint32_t num_dropped_attributes = 0;
  SpanContext context;  ///< span in which it was written; all zero: none
};

}  // namespace pharos::lens
