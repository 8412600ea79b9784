// Where recipes are found.
#include <algorithm>
#include <system_error>
#include <utility>

#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/recipe/recipe.h"

namespace pharos::config {
namespace {

namespace fs = std::filesystem;

bool is_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".yaml") || name.ends_with(".yml");
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

[[noreturn]] void throw_no_recipe_file(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const std::string quoted = "'" + path.string() + "'";
  base::UserError::Parts parts{.what = "There is no recipe file " + path.string() + ".",
                               .fix = "`pharos recipes list` shows the recipes by name."};
  if (fs::is_directory(status)) {
    parts.what = quoted + " is a folder, not a recipe file.";
    if (is_file(path / "run.yaml"))
      parts.fix = "The configuration of that run is " + (path / "run.yaml").string() + ".";
  } else if (fs::exists(status)) {
    parts.what = quoted + " is a pipe, a socket or a device, not a recipe file.";
    parts.fix = "Write the recipe to a file.";
  } else if (error && status.type() != fs::file_type::not_found) {
    parts.what = "The recipe file " + quoted + " cannot be looked at: " + error.message() + ".";
  }
  throw base::UserError(std::move(parts));
}

void add_environment_folders(std::vector<fs::path>& folders) {
  const std::string text = base::get_environment("PHAROS_RECIPE_PATH").value_or("");
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(':', start), text.size());
    if (end > start) folders.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
}

/// `folder` and the folders in it, by name: recipes are grouped by them.
std::vector<fs::path> with_groups(const fs::path& folder) {
  std::vector<fs::path> groups;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory(error)) groups.push_back(entry.path());
  }
  std::sort(groups.begin(), groups.end());
  groups.insert(groups.begin(), folder);
  return groups;
}

/// The file of a recipe in `beside` itself, or in one of `folders` or their groups; an empty path if there is none.
fs::path find_file(const fs::path& beside, const std::vector<fs::path>& folders, const std::string& name) {
  std::vector<fs::path> places;
  if (!beside.empty()) places.push_back(beside);
  for (const fs::path& folder : folders) {
    for (fs::path& group : with_groups(folder)) places.push_back(std::move(group));
  }
  for (const fs::path& place : places) {
    for (const char* extension : {".yaml", ".yml"}) {
      if (is_file(place / (name + extension))) return place / (name + extension);
    }
  }
  return {};
}

}  // namespace

std::vector<fs::path> recipe_folders() {
  std::vector<fs::path> folders = {"recipes"};
  add_environment_folders(folders);
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  if (error) return folders;
  folders.push_back(folder.parent_path() / "share" / "pharos" / "recipes");
  // A program that was not installed lies some folders below the source tree.
  for (int level = 0; level < 4 && folder.has_relative_path(); ++level) {
    folder = folder.parent_path();
    folders.push_back(folder / "recipes");
  }
  return folders;
}

std::map<std::string, fs::path> list_recipes() {
  std::map<std::string, fs::path> recipes;
  for (const fs::path& folder : recipe_folders()) {
    for (const fs::path& group : with_groups(folder)) {
      std::error_code error;
      for (const auto& entry : fs::directory_iterator(group, error)) {
        const auto extension = entry.path().extension();
        if (extension == ".yaml" || extension == ".yml") recipes.emplace(entry.path().stem().string(), entry.path());
      }
    }
  }
  return recipes;
}

std::string recipe_group(const fs::path& path) {
  const std::vector<fs::path> folders = recipe_folders();
  const fs::path folder = path.parent_path();
  const bool is_top = std::find(folders.begin(), folders.end(), folder) != folders.end();
  return is_top ? "" : folder.filename().string();
}

fs::path find_recipe(const std::string& name, const fs::path& beside) {
  if (is_path(name)) {
    const fs::path path(name);
    if (!beside.empty() && path.is_relative() && is_file(beside / path)) return beside / path;
    if (is_file(path)) return path;
    throw_no_recipe_file(path);
  }
  std::vector<fs::path> folders = recipe_folders();
  fs::path found = find_file(beside, folders, name);
  constexpr std::string_view kSuffix = "_config";  // Megatron-Bridge's functions end in it
  if (found.empty() && name.ends_with(kSuffix))
    found = find_file(beside, folders, name.substr(0, name.size() - kSuffix.size()));
  if (!found.empty()) return found;
  if (!beside.empty()) folders.insert(folders.begin(), beside);
  std::vector<std::string> searched, known;
  for (const fs::path& folder : folders) {
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) searched.push_back(folder.string());
  }
  for (const auto& [recipe, path] : list_recipes()) known.push_back(recipe);
  const auto nearest = base::nearest_names(name, known);
  throw base::UserError({.what = "There is no recipe " + name + ".",
                         .where = searched.empty() ? "" : "searched in " + base::join(searched, ", "),
                         .fix = nearest.empty() ? "`pharos recipes list` shows all."
                                                : "Did you mean " + base::join(nearest, ", ") + "?"});
}

}  // namespace pharos::config
