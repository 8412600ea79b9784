#include "pharos/cli/train_command.h"

#include <ATen/Context.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/memory.h"
#include "pharos/base/text.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/run_source.h"
#include "pharos/cli/text_option.h"
#include "pharos/comm/rank_environment.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/launch/job.h"
#include "pharos/launch/rank_process.h"
#include "pharos/lens/variables/environment.h"
#include "pharos/plan/plan.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/train.h"

namespace pharos::cli {
namespace {

/// Plans are within a tenth of what is measured; refusing needs to be surer than that.
constexpr double kMemoryMargin = 1.25;

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::string run_folder;
  bool resume = false;
  std::int64_t num_ranks = 0;  ///< 0: this process is the only rank
  std::int64_t max_restarts = 0;
  std::vector<std::string> words;  ///< the command line as it was given
  lens::LensFlags telemetry;
};

/// run.yaml of a run folder; an empty one beside steps of the run is damaged.
std::filesystem::path own_configuration(const std::filesystem::path& run_folder) {
  train::require_run(run_folder);
  const std::filesystem::path path = run_folder / "run.yaml";
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored) && std::filesystem::file_size(path, ignored) == 0) {
    throw base::UserError({.what = "'" + path.string() + "' is empty: it is damaged.",
                           .where = path.string(),
                           .why = "It should hold the resolved configuration of the run.",
                           .fix = "Name the recipe and overrides of the run: pharos train RECIPE … --run-dir " +
                                  run_folder.string() + " --resume."});
  }
  return path;
}

/// A run that is resumed without naming a recipe continues by its own run.yaml.
config::ResolveRequest request_of(const Arguments& arguments) {
  std::string recipe = arguments.recipe;
  std::vector<std::string> overrides = arguments.overrides;
  if (recipe.find('=') != std::string::npos) {  // no recipe given: the first word is an override already
    overrides.insert(overrides.begin(), recipe);
    recipe.clear();
  }
  if (recipe.empty() && arguments.resume && !arguments.run_folder.empty()) {
    recipe = own_configuration(arguments.run_folder).string();
  }
  if (recipe.empty()) {
    throw base::UserError(
        {.what = "No recipe was given.",
         .where = "command line",
         .fix = "Name one, for example `pharos train quickstart`; `pharos recipes list` shows them."});
  }
  return {.recipe = recipe, .overrides = overrides};
}

/// A run that cannot fit is refused before it starts to swap or is killed half-way.
void check_memory(const config::ResolvedConfig& resolved, const comm::RankEnvironment& ranks) {
  if (resolved.config.dist.device != config::DeviceKind::kCpu) return;
  const std::int64_t available = base::available_memory_bytes();
  if (available == 0) return;
  const plan::Plan plan = plan::make_plan(resolved, ranks.world_size);
  const double of_rank = plan.memory.peak_bytes - plan.memory.part("data");  // mapped pages make way
  const double needed = of_rank * static_cast<double>(ranks.local_world_size);
  if (needed <= kMemoryMargin * static_cast<double>(available)) return;
  throw base::UserError(
      {.what =
           "The run needs about " + base::format_bytes(needed) + " of memory" +
           (ranks.local_world_size > 1 ? " for the " + std::to_string(ranks.local_world_size) + " ranks here" : "") +
           "; " + base::format_bytes(static_cast<double>(available)) + " are available.",
       .where = resolved.describe("train.micro_batch_size"),
       .why = "The peak is reached in phase " + plan.memory.phase + "; `pharos plan` shows its parts.",
       .fix = "Lower train.micro_batch_size or dataset.seq_length, set model.recompute_granularity=full, or use a "
              "machine with more memory."});
}

/// Where the program or the machine lacks what dist.device asks for, every rank would fail in libtorch.
void check_device(const config::ResolvedConfig& resolved, std::int64_t num_ranks_here) {
  if (resolved.config.dist.device != config::DeviceKind::kCuda) return;
  const std::string where = resolved.describe("dist.device");
  if (!at::detail::getCUDAHooks().hasCUDART()) {
    throw base::UserError({.what = "dist.device = cuda, but this program was built without CUDA.",
                           .where = where,
                           .fix = "Train on CPUs with dist.device=cpu, or take a build with CUDA (docs/building.md)."});
  }
  const auto num_devices = static_cast<std::int64_t>(at::getNumGPUs());
  if (num_devices > 0 && (num_devices >= num_ranks_here || resolved.config.dist.external_gpu_device_mapping)) return;
  throw base::UserError({.what = "dist.device = cuda, but " + std::to_string(num_devices) +
                                 " CUDA devices are seen here for " + std::to_string(num_ranks_here) + " ranks.",
                         .where = where,
                         .fix = "Start one rank for each device and look at nvidia-smi and $CUDA_VISIBLE_DEVICES. "
                                "Where a rank sees its own device alone, set "
                                "dist.external_gpu_device_mapping=true. For CPUs: dist.device=cpu."});
}

/// Without --run-dir a new one: made at once where `is_first`, as rank 0's is the one that counts.
std::filesystem::path run_folder_of(const Arguments& arguments, const config::ResolvedConfig& resolved, bool is_first) {
  if (!arguments.run_folder.empty()) return arguments.run_folder;
  // A run.yaml is called after the run it belongs to.
  const std::string name = resolved.recipe_path.filename() == "run.yaml"
                               ? resolved.recipe_path.parent_path().filename().string()
                               : resolved.recipe_name;
  const auto folder = is_first ? train::make_default_run_folder : train::default_run_folder;
  return folder(name, base::wall_ns());
}

/// A default folder of a run that did not begin is not left behind; one with anything in it stays.
struct DefaultFolder {
  ~DefaultFolder() {
    std::error_code ignored;
    if (is_default) std::filesystem::remove(path, ignored);
  }
  bool is_default;
  const std::filesystem::path& path;
};

/// This process becomes the launcher of the ranks. What is wrong with the configuration is said here, once.
void launch_ranks(const Arguments& arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  launch::JobOptions options;
  options.port = launch::find_job_port(lens::ProcessEnvironment());
  options.num_ranks = arguments.num_ranks;
  const config::ResolvedConfig resolved =
      config::prepare(request_of(arguments), arguments.num_ranks, config::Purpose::kTrain, complete_config);
  check_device(resolved, arguments.num_ranks);
  options.program = launch::own_program();
  options.arguments = launch::without_options(arguments.words, {"--nproc", "--max-restarts", "--run-dir"});
  options.run_folder = run_folder_of(arguments, resolved, true);
  options.is_resumed = arguments.resume;
  options.max_restarts = arguments.max_restarts;
  const DefaultFolder tidy{arguments.run_folder.empty(), options.run_folder};
  set_exit_code(launch::run_local_job(options, std::cerr));
}

void run_train(const Arguments& arguments) {
  // A console that goes away (a closed terminal, `| head`) must not end a run: log.txt has the same lines.
  std::signal(SIGPIPE, SIG_IGN);
  train::TrainOptions options;
  options.main_entry_ns = main_entry_ns();
  options.ranks = comm::read_rank_environment(lens::ProcessEnvironment());
  const config::ResolvedConfig resolved =
      config::prepare(request_of(arguments), options.ranks.world_size, config::Purpose::kTrain, complete_config);
  check_device(resolved, options.ranks.local_world_size);
  options.check_resources = [&resolved, &options] { check_memory(resolved, options.ranks); };
  config::export_environment(resolved.config);
  options.config_ready_ns = base::monotonic_ns();
  options.resume = arguments.resume;
  options.telemetry = arguments.telemetry;
  options.run_folder = run_folder_of(arguments, resolved, options.ranks.rank == 0);
  const DefaultFolder tidy{arguments.run_folder.empty() && options.ranks.rank == 0, options.run_folder};
  set_exit_code(train::train(resolved, options));
}

}  // namespace

void add_train_command(CLI::App& app, const std::vector<std::string>& words) {
  auto arguments = std::make_shared<Arguments>();
  arguments->words = words;
  CLI::App* command = app.add_subcommand("train", "Train a model by a recipe");
  command->add_option("recipe", arguments->recipe, "Recipe by name or path (pharos recipes list)");
  command->add_option("overrides", arguments->overrides,
                      "key=value …: fields of the configuration or parameters of the recipe");
  command->add_option("--run-dir", arguments->run_folder, "Folder of the run (default: runs/RECIPE-TIME)")
      ->check(filled_text());
  command->add_flag("--resume", arguments->resume, "Continue the run in --run-dir from its last checkpoint");
  CLI::Option* nproc = command->add_option("--nproc", arguments->num_ranks,
                                           "Start this many ranks on this machine (not under torchrun or srun)");
  nproc->check(whole_number<std::int64_t>(1, 4096));
  command
      ->add_option("--max-restarts", arguments->max_restarts,
                   "With --nproc: continue a job that died from its last checkpoint, at most this many times")
      ->check(whole_number<std::int64_t>(0, 1'000'000))
      ->needs(nproc);
  auto* telemetry = command->add_option_group("Telemetry (docs/observability)");
  // Not one flag of an optional: that one is false, not absent, when nobody gives it.
  CLI::Option* on = telemetry->add_flag_callback(
      "--otel-enabled", [arguments] { arguments->telemetry.enabled = true; }, "Export telemetry");
  telemetry
      ->add_flag_callback(
          "--no-otel-enabled", [arguments] { arguments->telemetry.enabled = false; },
          "Export none, whatever the environment says")
      ->excludes(on);
  telemetry->add_option("--otel-service-name", arguments->telemetry.service_name, "service.name");
  telemetry->add_option("--otel-span-groups", arguments->telemetry.span_groups,
                        "Span groups to record: default, per_step, all, or a list");
  command->callback([arguments] { arguments->num_ranks > 0 ? launch_ranks(*arguments) : run_train(*arguments); });
}

}  // namespace pharos::cli
