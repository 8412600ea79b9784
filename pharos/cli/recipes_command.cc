#include "pharos/cli/recipes_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/resolve.h"

namespace pharos::cli {
namespace {

void list_recipe(const std::string& name, const std::filesystem::path& path, std::size_t width) {
  std::vector<config::Problem> problems;
  std::string line = name;
  line.resize(std::max(line.size(), width) + 2, ' ');
  try {
    const config::Recipe recipe = config::read_recipe(path, problems);
    std::cout << line << recipe.description << " (" << path.string() << ")\n";
  } catch (const base::UserError& error) {
    std::cout << line << "cannot be read: " << error.parts().what << " (" << path.string() << ")\n";
  }
}

/// By the folder they lie in; those in none come first.
void list_recipes() {
  const auto all = config::list_recipes();
  if (all.empty()) {
    std::vector<std::string> folders;
    for (const auto& folder : config::recipe_folders()) folders.push_back(folder.string());
    throw base::UserError(
        {.what = "There are no recipes.",
         .why = "None is in " + base::join(folders, ", ") + ".",
         .fix = "Set PHAROS_RECIPE_PATH to the folder that holds them, or name a recipe by its path."});
  }
  std::map<std::string, std::map<std::string, std::filesystem::path>> groups;
  for (const auto& [name, path] : all) groups[config::recipe_group(path)].emplace(name, path);
  for (const auto& [group, recipes] : groups) {
    if (!group.empty()) std::cout << "\n" << group << "\n";
    std::size_t width = 0;
    for (const auto& [name, path] : recipes) width = std::max(width, name.size());
    for (const auto& [name, path] : recipes) list_recipe(name, path, width);
  }
}

/// The parameters of a recipe and its bases, as comments.
void print_parameters(const std::string& name) {
  std::vector<config::Problem> problems;
  for (const config::Recipe& recipe : config::load_recipe_chain(name, problems)) {
    for (const config::RecipeParameter& parameter : recipe.parameters) {
      const std::string value = parameter.required ? "required" : config::to_flow_text(parameter.default_value);
      std::string type = parameter.type;
      for (const config::Value& choice : parameter.choices)
        type += (&choice == &parameter.choices.front() ? ": " : "|") + config::to_flow_text(choice);
      std::cout << "# parameter " << parameter.name << " (" << type << ", default " << value << "): " << parameter.doc
                << "\n";
    }
  }
}

void show(const std::string& name, const std::vector<std::string>& overrides) {
  const config::ResolvedConfig resolved = config::resolve({.recipe = name, .overrides = overrides});
  print_parameters(name);
  for (const std::string& warning : resolved.warnings) std::cout << "# warning: " << warning << "\n";
  std::cout << config::to_recipe_yaml(resolved);
}

}  // namespace

void add_recipes_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("recipes", "Recipes: ready configurations");
  command->require_subcommand(1);
  command->add_subcommand("list", "List the recipes that are found")->callback(&list_recipes);

  struct ShowOptions {
    std::string name;
    std::vector<std::string> overrides;
  };
  auto options = std::make_shared<ShowOptions>();
  CLI::App* show_command =
      command->add_subcommand("show", "Print the resolved configuration with the origin of every value");
  show_command->add_option("name", options->name, "Name or path of the recipe")->required();
  show_command->add_option("overrides", options->overrides, "key=value: a parameter of the recipe or a field");
  show_command->callback([options] { show(options->name, options->overrides); });
}

}  // namespace pharos::cli
