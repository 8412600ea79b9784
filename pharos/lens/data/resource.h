// Who sends telemetry.
#pragma once

#include <cstdint>

#include "pharos/lens/data/stored_value.h"

namespace pharos::lens {

/// Attributes of the sending process, and how its monotonic clock relates to wall time.
struct Resource {
  StoredAttributes attributes;
  std::int64_t wall_anchor_ns = 0;       ///< Unix time at …
  std::int64_t monotonic_anchor_ns = 0;  ///< … this CLOCK_MONOTONIC

  std::int64_t to_wall_ns(std::int64_t monotonic_ns) const {
    return wall_anchor_ns + (monotonic_ns - monotonic_anchor_ns);
  }
};

}  // namespace pharos::lens
