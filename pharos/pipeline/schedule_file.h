// A user's own schedule from a file (docs/pipelines.md has the format).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// Reads a schedule. UserError naming the file and the place in it for anything that is not JSON, an unknown or missing
/// key, a wrong type or size, an action that cannot be read, and whatever check() finds.
Schedule schedule_from_file(const std::filesystem::path& path);

/// The same from text; `where` is named in errors.
Schedule parse_schedule(const std::string& text, const std::string& where);

/// The schedule as text of such a file.
std::string schedule_to_json(const Schedule& schedule);

/// The inverse of notation(). Nothing for any other text.
std::optional<Action> parse_action(std::string_view text);

}  // namespace pharos::pipeline
