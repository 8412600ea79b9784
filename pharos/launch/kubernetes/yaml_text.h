// JSON-shaped data as YAML that a person reads.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace pharos::launch {

/// Keys in their order; text in double quotes, text of several lines as a block where YAML can hold it unchanged. Reads
/// back as the same data. UserError: text that is not UTF-8.
std::string to_yaml(const nlohmann::ordered_json& value);

}  // namespace pharos::launch
