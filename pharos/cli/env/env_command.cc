#include "pharos/cli/env/env_command.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/run_source.h"
#include "pharos/cli/text_option.h"
#include "pharos/config/limits.h"
#include "pharos/config/resolve.h"
#include "pharos/launch/environment/detect_profile.h"
#include "pharos/launch/environment/environment_plan.h"
#include "pharos/launch/environment/environment_text.h"

namespace pharos::cli {
namespace {

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string profile;  ///< empty: detected
  std::string gpu;      ///< empty: as the recipe is named
  std::filesystem::path sysfs = "/sys";
  std::int64_t num_nodes = 0;      ///< 0: the fewest ranks that fit, whatever their nodes
  std::int64_t gpus_per_node = 0;  ///< 0: GPUS_PER_NODE, else 8
  bool as_json = false;
  bool as_export = false;
};

/// Without recipe and override what the profile sets for a GPU.
config::ResolvedConfig configuration(const Arguments& arguments, std::int64_t gpus_per_node) {
  if (arguments.recipe.empty()) {
    config::ResolvedConfig none;
    none.config.dist.device = config::DeviceKind::kCuda;
    return none;
  }
  config::ResolveRequest request{.recipe = arguments.recipe, .overrides = arguments.overrides};
  if (request.recipe.find('=') != std::string::npos) {  // no recipe given: the first word is an override already
    request.overrides.insert(request.overrides.begin(), request.recipe);
    request.recipe.clear();
  }
  const std::int64_t world_size =
      arguments.num_nodes > 0 ? arguments.num_nodes * gpus_per_node : smallest_world_size(request);
  return config::prepare(request, world_size, config::Purpose::kPlan, complete_config);
}

void show(const Arguments& arguments) {
  std::int64_t gpus_per_node = arguments.gpus_per_node;
  if (gpus_per_node == 0) gpus_per_node = base::get_environment_integer("GPUS_PER_NODE").value_or(8);
  if (gpus_per_node < 1) {
    throw base::UserError({.what = "GPUS_PER_NODE = " + std::to_string(gpus_per_node) + " is no number of GPUs.",
                           .where = "environment",
                           .fix = "Set it to at least 1, or give --gpus-per-node."});
  }
  launch::DetectedProfile network{.profile = launch::NetworkProfile::kTcp, .evidence = "named by --profile"};
  if (arguments.profile.empty()) {
    network = launch::detect_network_profile(arguments.sysfs);
  } else {
    network.profile = launch::parse_network_profile(arguments.profile);
  }
  const launch::NodeShape node{
      .gpus_per_node = gpus_per_node, .cores_per_node = std::thread::hardware_concurrency(), .gpu = arguments.gpu};
  const launch::EnvironmentPlan plan = launch::plan_environment(configuration(arguments, gpus_per_node),
                                                                network.profile, lens::ProcessEnvironment(), node);
  if (arguments.as_export) {
    std::cout << launch::export_lines(plan);
    for (const std::string& warning : plan.warnings) std::cerr << "warning: " << warning << "\n";
  } else if (arguments.as_json) {
    nlohmann::json json = launch::to_json(plan);
    json["profile_evidence"] = network.evidence;
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << "Profile " << launch::name_of(plan.profile) << ": " << network.evidence << "\n\n"
              << launch::render(plan);
  }
}

}  // namespace

void add_env_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("env", "Environment variables of a run on a cluster");
  command->require_subcommand(1);
  CLI::App* show_command =
      command->add_subcommand("show", "Every variable with its value, who decides it, and why (docs/cluster)");
  auto arguments = std::make_shared<Arguments>();
  show_command->add_option("recipe", arguments->recipe, "Recipe by name or path; none: the network profile alone");
  show_command->add_option("overrides", arguments->overrides,
                           "key=value …: fields of the configuration or parameters of the recipe");
  show_command
      ->add_option("--profile", arguments->profile,
                   "What connects the nodes: efa, ib or tcp (default: by the devices of this machine)")
      ->check(filled_text());
  show_command->add_option("--sysfs", arguments->sysfs, "Root of the devices that decide the profile")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str()
      ->excludes("--profile");
  show_command->add_option("--gpu", arguments->gpu, "GPU of the nodes (default: the one in the recipe's name)")
      ->check(CLI::IsMember(launch::known_gpus()));
  show_command
      ->add_option("--nodes", arguments->num_nodes, "Nodes of the run (default: the fewest ranks the sizes allow)")
      ->check(whole_number<std::int64_t>(1, config::kMostRanks));
  show_command
      ->add_option("--gpus-per-node", arguments->gpus_per_node, "Ranks of a node (default: $GPUS_PER_NODE or 8)")
      ->check(whole_number<std::int64_t>(1, config::kMostRanks));
  show_command->add_flag("--json", arguments->as_json, "As JSON");
  show_command
      ->add_flag("--export", arguments->as_export,
                 "As lines of a shell, for `eval` in each task; without variables that are set already")
      ->excludes("--json");
  show_command->callback([arguments] { show(*arguments); });
}

}  // namespace pharos::cli
