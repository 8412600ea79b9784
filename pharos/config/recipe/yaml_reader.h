// YAML text to Value, with file:line of every node. Anchors, aliases and tags are refused: a configuration is plain
// data.
#pragma once

#include <string>
#include <string_view>

#include "pharos/config/overrides/value.h"

namespace pharos::config {

/// Larger configuration files are refused, in bytes.
inline constexpr std::size_t kMaxYamlBytes = 1 << 20;

/// Parses one YAML document. `file` names the source in origins ("<origin_prefix> (<file>:<line>)") and errors.
/// Throws UserError with file:line for syntax errors, duplicate keys, anchors, aliases, tags, several documents, and
/// input that is too large or nested too deep. An empty document is an empty map.
Value read_yaml(std::string_view text, const std::string& file, Origin::Kind kind, const std::string& origin_prefix);

}  // namespace pharos::config
