// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace pharos::base {

struct ProcessMemory {
  std::int64_t resident_bytes = 0;
  std::int64_t peak_resident_bytes = 0;
};

/// From /proc/self/status; zeros where that cannot be read.
ProcessMemory process_memory();

}  // namespace pharos::base
