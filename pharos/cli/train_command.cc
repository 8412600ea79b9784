#include "pharos/cli/train_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/run_source.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/train.h"

namespace pharos::cli {
namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string run_folder;
  bool resume = false;
};

/// A run that is resumed without naming a recipe continues by its own run.yaml.
config::ResolveRequest request_of(const Arguments& arguments) {
  std::string recipe = arguments.recipe;
  std::vector<std::string> overrides = arguments.overrides;
  if (recipe.find('=') != std::string::npos) {  // no recipe given: the first word is an override already
    overrides.insert(overrides.begin(), recipe);
    recipe.clear();
  }
  if (recipe.empty() && arguments.resume && !arguments.run_folder.empty()) {
    recipe = (std::filesystem::path(arguments.run_folder) / "run.yaml").string();
  }
  if (recipe.empty()) {
    throw base::UserError(
        {.what = "No recipe was given.",
         .where = "command line",
         .fix = "Name one, for example `pharos train quickstart`; `pharos recipes list` shows them."});
  }
  return {.recipe = recipe, .overrides = overrides};
}

void run_train(const Arguments& arguments) {
  train::TrainOptions options;
  options.main_entry_ns = main_entry_ns();
  const config::ResolvedConfig resolved =
      config::prepare(request_of(arguments), 1, config::Purpose::kTrain, complete_config);
  config::export_environment(resolved.config);
  options.config_ready_ns = base::monotonic_ns();
  options.resume = arguments.resume;
  // A run.yaml is called after the run it belongs to.
  const std::string name = resolved.recipe_path.filename() == "run.yaml"
                               ? resolved.recipe_path.parent_path().filename().string()
                               : resolved.recipe_name;
  options.run_folder = arguments.run_folder.empty() ? train::default_run_folder(name, base::wall_ns())
                                                    : std::filesystem::path(arguments.run_folder);
  set_exit_code(train::train(resolved, options));
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model by a recipe");
  command->add_option("recipe", arguments->recipe, "Recipe by name or path (pharos recipes list)");
  command->add_option("overrides", arguments->overrides,
                      "key=value …: fields of the configuration or parameters of the recipe");
  command->add_option("--run-dir", arguments->run_folder, "Folder of the run (default: runs/RECIPE-TIME)");
  command->add_flag("--resume", arguments->resume, "Continue the run in --run-dir from its last checkpoint");
  command->callback([arguments] { run_train(*arguments); });
}

}  // namespace pharos::cli
