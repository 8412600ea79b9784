#include "pharos/base/environment.h"

#include <charconv>
#include <cstdlib>

#include "pharos/base/error.h"

namespace pharos::base {

std::optional<std::string> get_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> get_environment_integer(const std::string& name) {
  const auto text = get_environment(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, status] = std::from_chars(text->data(), end, value);
  if (status != std::errc() || stop != end || text->empty()) {
    throw UserError({.what = "Environment variable " + name + " = '" + *text + "' is not an integer.",
                     .where = "environment",
                     .fix = "Set it to a whole number or unset it."});
  }
  return value;
}

}  // namespace pharos::base
