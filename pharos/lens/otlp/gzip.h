// gzip for request bodies.
#pragma once

#include <string>
#include <string_view>

namespace pharos::lens::otlp {

/// `bytes` as one gzip member (RFC 1952). Level 3: within a tenth of the best size for telemetry at a third of its
/// cost.
std::string gzip(std::string_view bytes);

}  // namespace pharos::lens::otlp
