#include "pharos/lens/logs/severity.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::lens {
namespace {

constexpr const char* kLevelNames[] = {"DEBUG", "INFO", "WARN", "ERROR", "FATAL"};

}  // namespace

std::string severity_text(Severity severity) {
  const int number = static_cast<int>(severity);
  if (number <= 0 || number > 24) return "";
  constexpr const char* kNames[] = {"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"};
  const int step = (number - 1) % 4;
  const std::string name = kNames[(number - 1) / 4];
  return step == 0 ? name : name + std::to_string(step + 1);
}

Severity severity_of_python_level(int level) {
  if (level < 10) return Severity::kUnspecified;
  const int level_index = std::min(level / 10, 5);
  const int step = std::min(level - 10 * level_index, 3);
  return static_cast<Severity>(1 + 4 * level_index + step);
}

std::string text_of_python_level(int level) {
  if (level == 0) return "NOTSET";
  if (level % 10 == 0 && level >= 10 && level <= 50) return kLevelNames[level / 10 - 1];
  return "Level " + std::to_string(level);
}

Severity parse_severity(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  if (upper == "WARNING") upper = "WARN";
  if (upper == "CRITICAL") upper = "FATAL";
  for (int i = 0; i < 5; ++i) {
    if (upper == kLevelNames[i]) return severity_of_python_level(10 * (i + 1));
  }
  throw base::UserError(
      {.what = "'" + std::string(name) + "' is no log level.", .fix = "Use debug, info, warn, error or fatal."});
}

}  // namespace pharos::lens
