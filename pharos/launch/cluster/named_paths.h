// Files and folders that a configuration names, which the ranks of a job must find.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "pharos/config/resolve.h"

namespace pharos::launch {

enum class PathKind : std::uint8_t { kFolder, kFile, kPrefix };  ///< a prefix is one of .bin and .idx

/// A path of the configuration and what must be there.
struct NamedPath {
  std::string field;
  std::string path;
  PathKind kind = PathKind::kFolder;
};

/// Weights, checkpoints, data and tokenizer files, in the words of the configuration.
std::vector<NamedPath> paths_of(const config::RunConfig& config);

/// Whether this machine has it; of a prefix both files.
bool is_there(const std::filesystem::path& path, PathKind kind);
bool is_file_there(const std::filesystem::path& path);

/// Who gave the path: the command line also when it gave a parameter of the recipe.
std::string where_from(const config::ResolvedConfig& resolved, const NamedPath& named);

/// Whether a recipe is given as the path of a file, not by name.
bool is_recipe_path(const std::string& recipe);

}  // namespace pharos::launch
