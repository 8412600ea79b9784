// A plan of the environment for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

/// "profile", "recipe", "user".
std::string_view name_of(VariableSource source);

/// One paragraph a variable: NAME=value, who decided it and why, what it overruled; then what is not exported; then the
/// warnings. Ends with a line break.
std::string render(const EnvironmentPlan& plan);

/// {"profile", "variables": [{"name", "value", "source", "origin", "reason", "overruled"}], "unused": [as variables],
/// "warnings"}. A value is the inside of a double-quoted word of a shell.
nlohmann::json to_json(const EnvironmentPlan& plan);

}  // namespace pharos::launch
