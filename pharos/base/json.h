// JSON files with errors that name file and position.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace pharos::base {

/// Parses `text`; `where` (usually a path) is named in the UserError together with the byte of the fault.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Reads and parses a JSON file.
nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace pharos::base
