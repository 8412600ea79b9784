// What this program needs in order to run elsewhere: its shared libraries, and the Debian packages they come from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/base/subprocess.h"

namespace pharos::launch {

struct OwnFiles {
  std::filesystem::path program;
  std::vector<std::string> packages;             ///< Debian packages that hold libraries it has loaded
  std::vector<std::filesystem::path> libraries;  ///< loaded ones of no package: libtorch
};

/// Files that the lines of a /proc/PID/maps name and that are shared libraries, each once.
std::vector<std::filesystem::path> mapped_libraries(const std::string& maps);

/// Packages that own `libraries`, by what `dpkg-query --search` printed ("package:arch, other: /path"); a library that
/// no line names goes to `libraries` of the result. /lib and /usr/lib are the same.
OwnFiles sort_libraries(const std::vector<std::filesystem::path>& libraries, const std::string& owners);

/// Those of this process. UserError where there is no dpkg.
OwnFiles find_own_files(const base::InterruptGuard* guard);

}  // namespace pharos::launch
