#include "pharos/launch/image/own_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/launch/rank_process.h"

namespace pharos::launch {
namespace {

/// dpkg knows a file of /lib under the one or the other name, whichever its package was made with.
std::string without_usr(const std::string& path) { return path.starts_with("/usr/") ? path.substr(4) : path; }

}  // namespace

std::vector<std::filesystem::path> mapped_libraries(const std::string& maps) {
  std::set<std::filesystem::path> libraries;
  std::istringstream lines(maps);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t begin = line.find('/');
    if (begin == std::string::npos) continue;
    const std::filesystem::path path = line.substr(begin);
    if (path.filename().string().find(".so") != std::string::npos) libraries.insert(path);
  }
  return {libraries.begin(), libraries.end()};
}

OwnFiles sort_libraries(const std::vector<std::filesystem::path>& libraries, const std::string& owners) {
  std::map<std::string, std::string> package_of;
  std::istringstream lines(owners);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t end = line.find(": /");
    if (end == std::string::npos || line.starts_with("diversion ")) continue;
    package_of[without_usr(line.substr(end + 2))] = line.substr(0, std::min(line.find_first_of(",:"), end));
  }
  OwnFiles own;
  std::set<std::string> packages;
  for (const std::filesystem::path& library : libraries) {
    const auto package = package_of.find(without_usr(library.string()));
    if (package == package_of.end()) {
      own.libraries.push_back(library);
    } else {
      packages.insert(package->second);
    }
  }
  own.packages.assign(packages.begin(), packages.end());
  return own;
}

OwnFiles find_own_files(const base::InterruptGuard* guard) {
  if (!base::find_program("dpkg-query")) {
    throw base::UserError({.what = "There is no program dpkg-query: this is not Debian.",
                           .where = "--cpu",
                           .why = "The image holds the Debian packages of the libraries that this program runs with.",
                           .fix = "Build it on Debian, or build a Dockerfile with --file."});
  }
  const auto libraries = mapped_libraries(base::read_file("/proc/self/maps"));
  std::vector<std::string> words = {"dpkg-query", "--search"};
  for (const std::filesystem::path& library : libraries) {
    const std::string path = without_usr(library.string());
    words.push_back(path);
    words.push_back("/usr" + path);
  }
  // Its exit code says only that some are of no package.
  OwnFiles own = sort_libraries(libraries, base::run_command({.words = words, .guard = guard}).output);
  own.program = own_program();
  return own;
}

}  // namespace pharos::launch
