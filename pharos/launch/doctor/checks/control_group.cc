#include "pharos/launch/doctor/checks/control_group.h"

#include <algorithm>
#include <sstream>

namespace pharos::launch {
namespace {

/// Folders of the group of this process and of those around it, of `controller` in version 1, else of version 2.
std::vector<std::string> group_folders(const Node& node, const std::string& controller) {
  std::istringstream lines(node.read("/proc/self/cgroup").value_or(""));
  std::string base, path;
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = ",";
    controllers.append(line, first + 1, second - first - 1).append(",");
    const bool is_version_1 = controllers.find("," + controller + ",") != std::string::npos;
    if (is_version_1 || (controllers == ",," && base.empty())) {
      base = is_version_1 ? "/sys/fs/cgroup/" + controller : "/sys/fs/cgroup";
      path = line.substr(second + 1);
    }
  }
  std::vector<std::string> folders;
  if (base.empty()) return folders;
  for (; path.size() > 1; path.erase(std::min(path.rfind('/'), path.size()))) folders.push_back(base + path);
  folders.push_back(base);
  return folders;
}

}  // namespace

double control_group_cpus(const Node& node) {
  double least = 0;
  for (const std::string& folder : group_folders(node, "cpu")) {
    double quota = 0, period = 0;
    if (const auto text = node.read(folder + "/cpu.max")) {
      std::istringstream(*text) >> quota >> period;  // "max 100000" leaves both 0
    } else {
      quota = static_cast<double>(node.read_number(folder + "/cpu.cfs_quota_us").value_or(-1));
      period = static_cast<double>(node.read_number(folder + "/cpu.cfs_period_us").value_or(0));
    }
    if (quota > 0 && period > 0) least = least == 0 ? quota / period : std::min(least, quota / period);
  }
  return least;
}

std::optional<std::int64_t> control_group_memory_bytes(const Node& node) {
  constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // version 1 writes a number near 2^63
  std::optional<std::int64_t> least;
  for (const std::string& folder : group_folders(node, "memory")) {
    auto limit = node.read_number(folder + "/memory.max");
    if (!limit) limit = node.read_number(folder + "/memory.limit_in_bytes");
    if (limit && *limit < kNoLimit) least = std::min(*limit, least.value_or(*limit));
  }
  return least;
}

}  // namespace pharos::launch
