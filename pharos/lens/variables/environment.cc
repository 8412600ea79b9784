#include "pharos/lens/variables/environment.h"

#include <unistd.h>

#include <algorithm>

#include "pharos/base/environment.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {

std::optional<std::string> Environment::get_nonblank(const std::string& name) const {
  const auto value = get(name);
  if (!value) return std::nullopt;
  const std::string_view text = trim_blanks(*value);
  if (text.empty()) return std::nullopt;
  return std::string(text);
}

std::optional<std::string> Environment::get_nonempty(const std::string& name) const {
  auto value = get(name);
  if (value && value->empty()) return std::nullopt;
  return value;
}

std::optional<std::string> ProcessEnvironment::get(const std::string& name) const {
  return base::get_environment(name);
}

std::vector<std::string> ProcessEnvironment::names_starting_with(std::string_view prefix) const {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with(prefix)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<std::string> MapEnvironment::get(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> MapEnvironment::names_starting_with(std::string_view prefix) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables_) {
    if (std::string_view(name).starts_with(prefix)) names.push_back(name);
  }
  return names;
}

}  // namespace pharos::lens
