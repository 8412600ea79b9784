// ${name} in values: a recipe parameter or another field.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pharos/config/overrides/assignment.h"
#include "pharos/config/overrides/value.h"
#include "pharos/config/problem.h"

namespace pharos::config {

/// Replaces ${parameter} and ${section.field} in all texts of `value`. A text that is one interpolation takes the type
/// of what it names; otherwise the texts are joined. `\${` is a literal. Unknown names, cycles, resolvers
/// (`${oc.env:X}`) and unclosed braces become problems, and the text stays. `name`: the field or parameter the value
/// belongs to.
Value interpolate(const std::string& name, const Value& value, const std::map<std::string, Value>& parameters,
                  const Assignments& assignments, std::vector<Problem>& problems);

}  // namespace pharos::config
