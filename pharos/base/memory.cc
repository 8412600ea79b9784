#include "pharos/base/memory.h"

#include <algorithm>
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

namespace {

/// First number of a file, -1 where there is none (a control group says "max").
std::int64_t read_number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = -1;
  return file >> number ? number : -1;
}

/// Room left under the limits of this process's control group and those around it (version 2).
std::int64_t control_group_room(std::int64_t room) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("0::")) continue;
  if (!line.starts_with("0::")) return room;
  for (std::string group = line.substr(3); !group.empty(); group.resize(group.find_last_of('/'))) {
    const std::string folder = "/sys/fs/cgroup" + (group == "/" ? "" : group);
    const std::int64_t limit = read_number(folder + "/memory.max");
    const std::int64_t used = read_number(folder + "/memory.current");
    if (limit >= 0 && used >= 0) room = std::min(room, std::max<std::int64_t>(0, limit - used));
  }
  return room;
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return control_group_room(std::stoll(line.substr(13)) * 1024);
  }
  return 0;
}

}  // namespace pharos::base
