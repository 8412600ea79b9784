// Access to process environment variables, typed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pharos::base {

/// Value of environment variable `name`, or nullopt when it is not set.
std::optional<std::string> get_environment(const std::string& name);

/// As above, read as an integer. A value that is set but is not an integer is a UserError naming the variable.
std::optional<std::int64_t> get_environment_integer(const std::string& name);

}  // namespace pharos::base
