// Every environment variable that telemetry's set-up reads, in one table: documentation is checked against it, and a
// test compares it with what is really read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::lens {

struct VariableDescription {
  std::string_view name;  ///< without prefix where is_prefixed: "ENABLED"
  bool is_prefixed;       ///< read as MEGATRON_OTEL_NAME, then NEMO_LENS_NAME
  std::string_view default_value;
  std::string_view meaning;
  std::string_view note;  ///< how it differs from what other programs do with it; may be empty
};

/// In the order of the documentation. OTEL_EXPORTER_OTLP_* of endpoints are in otlp/options.h.
std::span<const VariableDescription> known_variables();

/// The names that are read after PREFIX_.
std::vector<std::string> prefixed_keys();

}  // namespace pharos::lens
