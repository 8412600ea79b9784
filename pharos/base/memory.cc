#include "pharos/base/memory.h"

#include <fstream>
#include <string>

namespace pharos::base {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto read = [&](const char* key, std::int64_t& bytes) {
      const std::string prefix(key);
      if (line.starts_with(prefix)) bytes = std::stoll(line.substr(prefix.size())) * 1024;
    };
    read("VmRSS:", memory.resident_bytes);
    read("VmHWM:", memory.peak_resident_bytes);
  }
  return memory;
}

}  // namespace pharos::base
