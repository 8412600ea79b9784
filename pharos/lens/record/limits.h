// How much one span may hold: the limits of the OpenTelemetry SDK, and the bounds that keep a span from flooding a
// ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace pharos::lens {

/// Limits of a session's spans; the defaults are those of the OpenTelemetry SDK (lens.md section 1.5). A limit of 0
/// keeps nothing of that kind. Links have no attributes.
struct RecordLimits {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

  std::uint32_t span_attributes = 128;             ///< when full the oldest is evicted and counted as dropped
  std::uint32_t event_attributes = 128;            ///< per event; further ones are counted as dropped
  std::uint32_t events = 128;                      ///< further ones are counted
  std::uint32_t links = 128;                       ///< further ones are counted
  std::size_t span_text_characters = kUnlimited;   ///< longer text of span attributes is cut, without a mark
  std::size_t event_text_characters = kUnlimited;  ///< the same of event attributes
};

/// Longest text or list of one attribute in bytes. Longer text is cut at a UTF-8 boundary and ends in "…", a longer
/// list is counted as dropped.
inline constexpr std::size_t kMaxValueBytes = std::size_t{16} * 1024;

}  // namespace pharos::lens
