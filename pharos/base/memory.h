// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>

namespace pharos::base {

struct ProcessMemory {
  std::int64_t resident_bytes = 0;
  std::int64_t peak_resident_bytes = 0;
};

/// Memory this process could still get: what the machine has available, or less where a control group (a container, a
/// job) limits it. 0 where that cannot be read.
std::int64_t available_memory_bytes();

/// From /proc/self/status; zeros where that cannot be read.
ProcessMemory process_memory();

}  // namespace pharos::base
