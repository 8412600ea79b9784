// The casting functions of the override grammar: int() float() str() bool() json_str().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "pharos/config/overrides/value.h"

namespace pharos::config {

bool is_cast(std::string_view function);

/// `function` applied to `value`; lists and mappings are cast element by element, except by json_str().
/// On failure returns nullopt and says in `rule` what is wrong.
std::optional<Value> apply_cast(std::string_view function, const Value& value, std::string& rule);

}  // namespace pharos::config
