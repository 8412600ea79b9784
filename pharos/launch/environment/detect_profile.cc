#include "pharos/launch/environment/detect_profile.h"

#include <algorithm>
#include <vector>

#include "pharos/base/text.h"

namespace pharos::launch {
namespace {

std::string devices_text(std::vector<std::string> names, const std::string& kind, const std::filesystem::path& folder) {
  std::sort(names.begin(), names.end());
  const std::string count = std::to_string(names.size());
  const bool is_cut = names.size() > 2;
  names.resize(std::min<std::size_t>(names.size(), 2));
  return count + " " + kind + (count == "1" ? " device (" : " devices (") + base::join(names, ", ") +
         (is_cut ? ", …" : "") + ") in " + folder.string();
}

}  // namespace

DetectedProfile detect_network_profile(const std::filesystem::path& sysfs) {
  const std::filesystem::path folder = sysfs / "class" / "infiniband";
  std::vector<std::string> efa, ib;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code no_link;
    const std::string name = entry.path().filename().string();
    const std::string driver =
        std::filesystem::read_symlink(entry.path() / "device" / "driver", no_link).filename().string();
    if (driver == "efa" || name.starts_with("rdmap") || name.starts_with("efa")) {
      efa.push_back(name);
    } else if (driver == "mlx5_core" || name.starts_with("mlx5")) {
      ib.push_back(name);
    }
  }
  if (!efa.empty()) return {NetworkProfile::kEfa, devices_text(efa, "EFA", folder)};
  if (!ib.empty()) return {NetworkProfile::kIb, devices_text(ib, "InfiniBand", folder)};
  return {NetworkProfile::kTcp, "no EFA or InfiniBand device in " + folder.string()};
}

}  // namespace pharos::launch
