#include "pharos/cli/launch/launch_kubernetes.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/run_source.h"
#include "pharos/cli/text_option.h"
#include "pharos/config/resolve.h"
#include "pharos/launch/kubernetes/kubernetes_manifest.h"
#include "pharos/launch/kubernetes/pod_mounts.h"
#include "pharos/launch/slurm/preflight.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::cli {
namespace {

constexpr const char* kOfSlurm[] = {"--partition", "--account",        "--qos",          "--constraint",
                                    "--time",      "--array",          "--mpi",          "--srun-arg",
                                    "--wait",      "--requeue",        "--max-requeues", "--sbatch-arg",
                                    "--signal",    "--chain",          "--no-container", "--nsys",
                                    "--program",   "--container-name", "--expand-nodes", "--no-gpu-resource-request"};

std::int64_t number_of(const char* variable, std::int64_t fallback, std::int64_t most) {
  const std::int64_t number = base::get_environment_integer(variable).value_or(fallback);
  if (number >= 1 && number <= most) return number;
  throw base::UserError({.what = std::string(variable) + " = " + std::to_string(number) + " is not between 1 and " +
                                 std::to_string(most) + ".",
                         .where = "environment",
                         .fix = "Correct or unset it."});
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ',');) parts.push_back(part);
  return parts;
}

struct PodConfig {
  config::ResolvedConfig resolved;
  std::vector<std::string> unseen;  ///< paths in mounts that this machine does not see
};

/// The configuration, and the overrides that give it: SIGTERM before the end of a pod must save. A folder of the pods
/// need not be here: its model is then taken as the recipe describes it.
PodConfig resolve(launch::JobRequest& job) {
  std::vector<launch::PodMount> mounts;
  for (const std::string& text : job.container->mounts) mounts.push_back(launch::parse_pod_mount(text));
  const config::ResolvedConfig given = config::resolve({.recipe = job.recipe, .overrides = job.overrides});
  // Before what would follow from a model without its files.
  const launch::PodPathFindings findings = launch::check_pod_paths(given, job.recipe, mounts);
  launch::slurm::throw_if_any(findings.problems);
  if (!given.is_explicit("train.exit_signal_handler"))
    job.overrides.insert(job.overrides.begin(), "train.exit_signal_handler=true");
  const auto complete_where_visible = [&mounts](config::ResolvedConfig& partial) {
    const std::optional<std::string> path = partial.config.model.hf_path;
    const std::filesystem::path here = path ? launch::path_on_node(mounts, *path) : std::filesystem::path();
    partial.config.model.hf_path.reset();
    if (!here.empty() && std::filesystem::exists(here)) partial.config.model.hf_path = here.string();
    complete_config(partial);
    partial.config.model.hf_path = path;
  };
  const config::ResolveRequest request = {.recipe = job.recipe, .overrides = job.overrides};
  PodConfig pods{.resolved = {}, .unseen = findings.unseen};
  try {
    pods.resolved =
        config::prepare(request, job.num_nodes * job.gpus_per_node, config::Purpose::kTrain, complete_where_visible);
  } catch (const config::ConfigErrors& errors) {
    const auto is_weights = [](const std::string& text) { return text.starts_with("model.hf_path"); };
    if (std::none_of(pods.unseen.begin(), pods.unseen.end(), is_weights)) throw;
    // The weights say what is missing of the model; here they are out of sight.
    std::vector<config::Problem> others = errors.problems();
    std::erase_if(others, [](const config::Problem& problem) {
      return problem.field.starts_with("model.") || problem.field.starts_with("tokenizer.");
    });
    config::throw_if_any(others);
    pods.resolved = config::resolve(request);
  }
  return pods;
}

void add_passed_variables(const std::vector<std::string>& names, launch::EnvironmentPlan& plan) {
  for (const std::string& name : names) {
    const auto value = base::get_environment(name);
    if (launch::is_set_for_ranks(name)) {
      throw base::UserError({.what = "The variable " + name + " cannot be passed on.",
                             .where = "--env " + name,
                             .why = "The pod gives each rank its own.",
                             .fix = "Leave out the option."});
    }
    if (!value || !launch::is_shell_name(name)) {
      throw base::UserError({.what = "The variable " + name + " is not set.",
                             .where = "--env " + name,
                             .fix = "Set it, or leave out the option."});
    }
    std::erase_if(plan.variables, [&](const launch::PlannedVariable& variable) { return variable.name == name; });
    plan.variables.push_back({.name = name,
                              .value = *value,
                              .reason = "Passed on by --env.",
                              .source = launch::VariableSource::kUser,
                              .origin = "environment"});
  }
}

launch::KubernetesOptions manifest_options(const KubernetesArguments& arguments) {
  launch::KubernetesOptions options{.kind = launch::KubernetesKind::kPyTorchJob,
                                    .name_space = arguments.name_space,
                                    .efa_per_node = arguments.efa_per_node,
                                    .shared_memory = arguments.shared_memory,
                                    .grace_seconds = arguments.grace_seconds,
                                    .node_selector = {}};
  if (!arguments.kind.empty()) options.kind = launch::parse_kubernetes_kind(arguments.kind);
  if (arguments.max_restarts && options.kind == launch::KubernetesKind::kPyTorchJob) {
    throw base::UserError({.what = "--k8s-max-restarts has no effect on a PyTorchJob.",
                           .where = "--k8s-max-restarts",
                           .why = "The training operator does not count pods that it makes anew.",
                           .fix = "Leave it out, or ask for a JobSet with --k8s jobset."});
  }
  options.max_restarts = arguments.max_restarts.value_or(options.max_restarts);
  for (const std::string& label : arguments.node_selector) {
    const std::size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw base::UserError({.what = "'" + label + "' is no label of a node.",
                             .where = "--k8s-node-selector",
                             .fix = "Write KEY=VALUE."});
    }
    if (options.node_selector.emplace(label.substr(0, equals), label.substr(equals + 1)).second) continue;
    throw base::UserError({.what = "The label " + label.substr(0, equals) + " is given twice.",
                           .where = "--k8s-node-selector",
                           .fix = "Give it once: a node has one value of it."});
  }
  return options;
}

}  // namespace

void add_kubernetes_options(CLI::App& command, KubernetesArguments& arguments) {
  auto* group = command.add_option_group("Kubernetes");
  CLI::Option* kind = group
                          ->add_option_function<std::vector<std::string>>(
                              "--k8s",
                              [&arguments](const std::vector<std::string>& words) {
                                arguments.is_given = true;
                                if (!words.empty()) arguments.kind = words.front();
                              },
                              "Print a manifest instead: pytorchjob (default) or jobset; needs --dry-run")
                          ->expected(0, 1)
                          ->type_name("KIND");
  for (const char* name : kOfSlurm) kind->excludes(command.get_option(name));
  const auto add = [&](const char* name, auto& value, const char* text) {
    return group->add_option(name, value, text)->needs(kind);
  };
  add("--k8s-namespace", arguments.name_space, "Namespace of the object")->check(filled_text());
  add("--k8s-efa", arguments.efa_per_node, "EFA devices of a node; needed with profile efa")
      ->check(whole_number<std::int64_t>(0, 1024));
  add("--k8s-shared-memory", arguments.shared_memory, "Most of /dev/shm, for example 64Gi")->check(filled_text());
  add("--k8s-grace", arguments.grace_seconds, "Seconds from SIGTERM to SIGKILL (default: 300)")
      ->check(whole_number<std::int64_t>(0, 86'400));
  add("--k8s-max-restarts", arguments.max_restarts, "Restarts of a JobSet (default: 3)")
      ->check(whole_number<std::int64_t>(0, 1'000'000));
  add("--k8s-node-selector", arguments.node_selector, "KEY=VALUE that nodes must have (repeatable)")
      ->allow_extra_args(false);
}

void print_manifest(const LaunchOptions& options, const KubernetesArguments& arguments) {
  const launch::KubernetesOptions of_manifest = manifest_options(arguments);
  if (!options.is_dry_run) {
    throw base::UserError({.what = "--k8s was given without --dry-run.",
                           .where = "command line",
                           .why = "Pharos writes manifests and does not talk to a cluster of Kubernetes.",
                           .fix = "Add --dry-run and give what it prints to `kubectl apply -f -`."});
  }
  if (options.recipe.empty()) {
    throw base::UserError({.what = "No recipe was given.",
                           .where = "command line",
                           .fix = "Name one before --k8s: `pharos launch RECIPE --k8s --dry-run`."});
  }
  if (options.run_folder.empty()) {
    throw base::UserError({.what = "No run folder was given.",
                           .where = "--run-dir",
                           .why = "A manifest may be applied again; it names the folder that the run continues in.",
                           .fix = "Give a folder below a mount, for example --run-dir /fsx/runs/NAME."});
  }
  launch::JobRequest job{.name = "",
                         .recipe = options.recipe,
                         .overrides = options.overrides,
                         .run_folder = {},
                         .container = {},
                         .environment = {.variables = {}, .warnings = {}}};
  job.train_options = options.train_arguments;
  job.run_folder = options.run_folder;
  job.num_nodes = options.num_nodes.value_or(1);
  job.gpus_per_node = options.gpus_per_node.value_or(number_of("GPUS_PER_NODE", 8, 4096));
  job.master_port = static_cast<std::uint16_t>(number_of("MASTER_PORT", 29500, 65535));
  job.container = launch::ContainerRequest{.image = options.image.value_or(""),
                                           .mounts = split(options.mounts.value_or("/fsx:/fsx"))};
  const launch::NetworkProfile profile = launch::parse_network_profile(options.profile);
  const PodConfig of_pods = resolve(job);
  const config::ResolvedConfig& resolved = of_pods.resolved;
  job.name = options.job_name.empty() ? resolved.recipe_name : options.job_name;
  job.uses_gpus = resolved.config.dist.device == config::DeviceKind::kCuda;
  job.environment =
      launch::plan_environment(resolved, profile, lens::ProcessEnvironment(), {.gpus_per_node = job.gpus_per_node});
  add_passed_variables(options.variables, job.environment);
  const std::string manifest = launch::kubernetes_manifest(job, of_manifest);
  if (!of_pods.unseen.empty()) {
    std::cerr << "note: not seen from this machine, so not checked: " << base::join(of_pods.unseen, ", ") << ".\n";
  }
  for (const std::string& warning : resolved.warnings) std::cerr << "note: " << warning << "\n";
  for (const std::string& warning : job.environment.warnings) std::cerr << "warning: " << warning << "\n";
  std::cout << manifest;
}

}  // namespace pharos::cli
