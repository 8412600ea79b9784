#include "pharos/launch/image/versions.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::launch {
namespace {

bool is_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char letter) { return std::isalnum(letter) != 0 || letter == '_'; });
}

}  // namespace

std::vector<NamedVersion> parse_version_table(std::string_view text, const std::filesystem::path& path) {
  std::vector<NamedVersion> versions;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (line.empty()) continue;
    const std::string where = path.string() + ":" + std::to_string(number);
    const std::size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (equals == std::string::npos || !is_name(name) || equals + 1 == line.size()) {
      throw base::UserError({.what = "Cannot read the version in '" + line + "'.",
                             .where = where,
                             .fix = "Write NAME=VERSION, for example NCCL_VERSION=2.29.3-1."});
    }
    if (std::any_of(versions.begin(), versions.end(), [&](const NamedVersion& one) { return one.name == name; })) {
      throw base::UserError({.what = name + " stands there twice.", .where = where, .fix = "Remove one of the lines."});
    }
    versions.push_back({.name = name, .version = line.substr(equals + 1)});
  }
  return versions;
}

std::vector<NamedVersion> read_version_table(const std::filesystem::path& path) {
  return parse_version_table(base::read_regular_file(path), path);
}

std::vector<std::string> declared_arguments(std::string_view dockerfile) {
  std::vector<std::string> names;
  std::istringstream lines{std::string(dockerfile)};
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word.size() != 3 || !std::equal(word.begin(), word.end(), "ARG", [](char left, char right) {
          return std::toupper(static_cast<unsigned char>(left)) == right;
        })) {
      continue;
    }
    while (words >> word) names.push_back(word.substr(0, word.find('=')));
  }
  return names;
}

}  // namespace pharos::launch
