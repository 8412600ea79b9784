// Recipes: YAML files with a base, named parameters, a configuration and conditional blocks. docs/configuration.md has
// the grammar.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/overrides/value.h"
#include "pharos/config/problem.h"

namespace pharos::config {

struct RecipeParameter {
  std::string name;
  std::string doc;
  std::string type = "any";  ///< any, str, int, float, bool; from `type:`, else from the default
  Value default_value;
  std::vector<Value> choices = {};  ///< the values it may have; empty: any
  bool required = false;
};

/// `if:` entry: the parameter equals one of `any_of`, or is (not) null, or equals none of `none_of`.
struct RecipeCondition {
  std::string parameter;
  std::vector<Value> any_of, none_of;
  std::optional<bool> is_set;
};

struct RecipeBlock {
  std::vector<RecipeCondition> conditions;  ///< all must hold
  Value config;
};

struct Recipe {
  std::string name;  ///< file name without .yaml
  std::filesystem::path path;
  std::string description;
  std::string base;  ///< empty when there is none
  Origin base_origin;
  std::vector<RecipeParameter> parameters;
  Value config = Value::of_map({});
  std::vector<RecipeBlock> when;
  std::map<std::string, Value> resolved_parameters;  ///< of a run.yaml: what the run was started with
};

/// Folders that are searched for recipe names, in order: ./recipes, PHAROS_RECIPE_PATH (colon-separated), the installed
/// recipes (share/pharos/recipes beside bin), and `recipes` in a folder above the program.
std::vector<std::filesystem::path> recipe_folders();

/// File of a recipe given as a path (it holds a slash or ends in .yaml or .yml) or as a name, with or without a
/// trailing
/// "_config". Names are those of files in recipe_folders() and in the folders directly in them. `beside`: folder
/// searched first, may be empty. Throws UserError that names the folders searched and the nearest recipe names.
std::filesystem::path find_recipe(const std::string& name, const std::filesystem::path& beside = {});

/// All recipe files found so, by name; an earlier folder hides a later one.
std::map<std::string, std::filesystem::path> list_recipes();

/// The folder that a recipe lies in, below one of recipe_folders(); empty for one directly in it.
std::string recipe_group(const std::filesystem::path& path);

/// Reads one recipe. Faults of its form are appended to `problems`; a file that cannot be read or parsed is a
/// UserError.
Recipe read_recipe(const std::filesystem::path& path, std::vector<Problem>& problems);
Recipe parse_recipe(std::string_view text, const std::filesystem::path& path, std::vector<Problem>& problems);

/// The recipe and its bases, base first. A cycle or a missing base becomes a problem.
std::vector<Recipe> load_recipe_chain(const std::string& name, std::vector<Problem>& problems);

/// True when all conditions hold for these parameter values.
bool block_applies(const RecipeBlock& block, const std::map<std::string, Value>& parameters);

}  // namespace pharos::config
