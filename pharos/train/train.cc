#include "pharos/train/train.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/lens/life/startup.h"
#include "pharos/tensor/host_allocator.h"
#include "pharos/train/report/progress.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/telemetry_scope.h"
#include "pharos/train/trainer.h"

namespace pharos::train {
namespace {

void announce(const config::ResolvedConfig& resolved, const RunFolder& folder, bool resume, Console& console) {
  for (const auto& warning : resolved.warnings) console.line("note: " + warning);
  console.line(fmt::format("recipe {} · run folder {}", resolved.recipe_name, folder.path().string()));
  if (!resume) return;
  try {
    for (const auto& difference : config::compare(config::load_run_yaml(folder.run_yaml()).config, resolved.config)) {
      console.line(fmt::format("changed since the run began: {} was {}, is {}", difference.field, difference.left,
                               difference.right));
    }
  } catch (const base::UserError& error) {
    console.line("warning: run.yaml of this run cannot be read and is written anew: " + error.parts().what);
  }
}

}  // namespace

base::ExitCode train(const config::ResolvedConfig& resolved, const TrainOptions& options) {
  lens::StartupRecord startup;
  startup.finish_phase("libraries", options.main_entry_ns);
  startup.finish_phase("config", options.config_ready_ns);
  tensor::install_host_allocator();
  const RunFolder folder(options.run_folder, options.resume);
  TelemetryScope telemetry(resolved, options, folder);
  Console console(folder.log(), ::isatty(STDOUT_FILENO) != 0);
  bool has_begun = false;
  try {
    announce(resolved, folder, options.resume, console);
    for (const std::string& warning : telemetry.warnings()) console.line("telemetry: " + warning);
    startup.finish_phase("initialize");
    const auto num_threads = static_cast<int>(resolved.config.dist.num_threads);
    if (num_threads > 0) at::set_num_threads(num_threads);
    if (resolved.config.model.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
    startup.finish_phase("kernels");
    Trainer trainer(resolved, folder, options, console, startup);
    trainer.set_up();
    // Written only now: a folder whose set-up failed holds no run and can be used again.
    base::write_file_atomically(folder.run_yaml(), config::to_yaml(resolved));
    if (resolved.config.logger.save_config_filepath) {
      base::write_file_atomically(*resolved.config.logger.save_config_filepath, config::to_yaml(resolved));
    }
    has_begun = true;
    return trainer.run();
  } catch (const std::exception& error) {
    console.log_only(std::string("error: ") + error.what());
    if (!has_begun && dynamic_cast<const base::UserError*>(&error) != nullptr) telemetry.discard();
    throw;
  }
}

}  // namespace pharos::train
