#include "pharos/cli/plan_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/run_source.h"
#include "pharos/comm/parallel_sizes.h"
#include "pharos/config/limits.h"
#include "pharos/config/resolve.h"
#include "pharos/plan/plan.h"
#include "pharos/plan/render.h"

namespace pharos::cli {
namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::int64_t world_size = 0;  ///< 0: the smallest that fits
  bool with_ranks = false;
  bool as_json = false;
  std::string schedule;       ///< "text" or "svg": the timeline alone
  std::string schedule_file;  ///< where the timeline goes; empty: standard output
  std::string costs_run;      ///< folder of a run
};

void show_schedule(const Arguments& arguments, const config::ResolvedConfig& resolved, std::int64_t world_size,
                   const std::optional<std::filesystem::path>& costs_run) {
  if (resolved.config.model.pipeline_model_parallel_size == 1) {
    throw base::UserError({.what = "This configuration trains on one stage: there is no pipeline to show.",
                           .where = "--schedule",
                           .fix = "Leave it out, or choose model.pipeline_model_parallel_size above 1."});
  }
  const comm::Mesh mesh(world_size, comm::parallel_sizes(resolved.config));
  const plan::PipelinePlan plan = plan::plan_pipeline(resolved, mesh, costs_run);
  const std::string picture =
      arguments.schedule == "svg" ? plan::render_timeline_svg(plan) : plan::render_timeline_text(plan);
  if (arguments.schedule_file.empty()) {
    std::cout << picture;
  } else {
    base::write_output_file(arguments.schedule_file, picture);
  }
}

/// What `pharos train` would say against it, problem by problem; empty: nothing.
std::vector<std::string> refusals_of_train(const config::ResolveRequest& request, std::int64_t world_size) {
  try {
    config::prepare(request, world_size, config::Purpose::kTrain, complete_config);
  } catch (const base::UserError& error) {
    std::vector<std::string> problems;
    std::istringstream text(error.what());
    for (std::string line; std::getline(text, line);) {
      if (line.starts_with("- ")) problems.push_back(line.substr(2));
      if (line.starts_with("    fix: ") && !problems.empty()) problems.back() += " " + line.substr(9);
    }
    return problems.empty() ? std::vector<std::string>{error.parts().what + " " + error.parts().fix} : problems;
  }
  return {};
}

void run_plan(const Arguments& arguments) {
  config::ResolveRequest request{.recipe = arguments.recipe, .overrides = arguments.overrides};
  if (request.recipe.find('=') != std::string::npos) {  // no recipe given: the first word is an override already
    request.overrides.insert(request.overrides.begin(), request.recipe);
    request.recipe.clear();
  }
  const std::int64_t world_size = arguments.world_size > 0 ? arguments.world_size : smallest_world_size(request);
  const config::ResolvedConfig resolved = config::prepare(request, world_size, config::Purpose::kPlan, complete_config);
  const std::optional<std::filesystem::path> costs_run =
      arguments.costs_run.empty() ? std::nullopt : std::optional<std::filesystem::path>(arguments.costs_run);
  if (!arguments.schedule.empty()) return show_schedule(arguments, resolved, world_size, costs_run);
  const plan::Plan plan = plan::make_plan(resolved, world_size, costs_run);
  const std::vector<std::string> refusals = refusals_of_train(request, world_size);
  if (arguments.as_json) {
    nlohmann::json json = plan::to_json(plan, arguments.with_ranks);
    json["warnings"] = resolved.warnings;
    json["refused_by_train"] = refusals;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  std::cout << plan::render(plan, arguments.with_ranks);
  for (const std::string& warning : resolved.warnings) std::cout << "note: " << warning << "\n";
  for (const std::string& problem : refusals) std::cout << "note: `pharos train` would refuse: " << problem << "\n";
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("plan", "What a run will need and do: checks, parameters, memory, operations, steps");
  command->add_option("recipe", arguments->recipe, "Recipe by name or path (pharos recipes list)");
  command->add_option("overrides", arguments->overrides,
                      "key=value …: fields of the configuration or parameters of the recipe");
  command
      ->add_option("--world-size", arguments->world_size,
                   "Number of ranks (default: the fewest the parallel sizes allow)")
      ->check(whole_number<std::int64_t>(1, config::kMostRanks));
  command->add_flag("--ranks", arguments->with_ranks, "List groups and coordinates of all ranks");
  command->add_flag("--json", arguments->as_json, "As JSON (docs/plan.md)");
  CLI::Option* schedule =
      command
          ->add_option("--schedule", arguments->schedule,
                       "Only the timeline of the pipeline in a step (docs/pipelines.md): text or svg")
          ->check(CLI::IsMember({"text", "svg"}))
          ->excludes("--json");
  command->add_option("--schedule-out", arguments->schedule_file, "File for the timeline instead of standard output")
      ->needs(schedule);
  command->add_option("--costs", arguments->costs_run,
                      "Folder of a pipelined run: take the times of the stages from what it measured");
  command->callback([arguments] { run_plan(*arguments); });
}

}  // namespace pharos::cli
