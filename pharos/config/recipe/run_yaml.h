// run.yaml: the resolved configuration of a run, each value with its origin. It is itself a recipe without base, so
// `pharos train runs/x/run.yaml` repeats the run.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/config/resolve.h"

namespace pharos::config {

/// YAML text of all fields that act or that were set, with `# origin` behind every value. Reading it back with
/// load_run_yaml() gives the same RunConfig.
std::string to_recipe_yaml(const ResolvedConfig& resolved);

/// The same as a file: between a first and a last line that show whether it is whole.
std::string to_yaml(const ResolvedConfig& resolved);

/// A UserError naming `path` if `text` begins as to_yaml() does and does not end so. Such a file would be read without
/// complaint: every line is optional.
void check_is_whole(std::string_view text, const std::filesystem::path& path);

/// Reads a run.yaml (or the run folder that holds one). Throws ConfigErrors or UserError.
ResolvedConfig load_run_yaml(const std::filesystem::path& path);

struct Difference {
  std::string field;
  std::string left, right;  ///< values as text
};

/// Fields in which two configurations differ, in schema order.
std::vector<Difference> compare(const RunConfig& left, const RunConfig& right);

}  // namespace pharos::config
