#include "pharos/train/train.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <iostream>
#include <optional>
#include <thread>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/comm/flight.h"
#include "pharos/comm/interruption.h"
#include "pharos/comm/watchdog.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/lens/life/startup.h"
#include "pharos/tensor/host_allocator.h"
#include "pharos/train/agreement.h"
#include "pharos/train/attempts/attempt_log.h"
#include "pharos/train/exit_policy.h"
#include "pharos/train/parallel.h"
#include "pharos/train/report/progress.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/telemetry_scope.h"
#include "pharos/train/trainer.h"

namespace pharos::train {
namespace {

void announce(const config::ResolvedConfig& resolved, const RunFolder& folder, bool resume, Console& console) {
  for (const auto& warning : resolved.warnings) console.line("note: " + warning);
  const bool is_on_gpu = resolved.config.dist.device == config::DeviceKind::kCuda;
  console.line(fmt::format("recipe {} · on {} · run folder {}", resolved.recipe_name, is_on_gpu ? "CUDA" : "the CPU",
                           folder.path().string()));
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

at::Device device_of(const config::DistConfig& dist, const comm::RankEnvironment& ranks) {
  if (dist.device != config::DeviceKind::kCuda) return at::kCPU;
  const std::int64_t index = dist.external_gpu_device_mapping ? 0 : dist.local_rank.value_or(ranks.local_rank);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

/// Ranks of a node share its cores.
void set_num_threads(const config::DistConfig& dist, const comm::RankEnvironment& ranks) {
  if (dist.num_threads > 0) {
    at::set_num_threads(static_cast<int>(dist.num_threads));
  } else if (ranks.local_world_size > 1 && !base::get_environment("OMP_NUM_THREADS")) {
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    at::set_num_threads(static_cast<int>(std::max<std::int64_t>(1, cores / ranks.local_world_size)));
  }
}

comm::WorldOptions world_options(const config::DistConfig& dist, const comm::RankEnvironment& ranks) {
  comm::WorldOptions options;
  options.device = device_of(dist, ranks);
  options.rendezvous_timeout = std::chrono::minutes(dist.distributed_timeout_minutes);
  options.timeout = options.rendezvous_timeout + kWatchdogLead;
  return options;
}

/// Rank 0 opens the folder, then the others see it.
RunFolder open_run_folder(comm::World& world, const TrainOptions& options) {
  std::optional<RunFolder> folder;
  const std::filesystem::path path =
      world.announce("run folder", std::filesystem::absolute(options.run_folder).string());
  together(world, "run folder of rank 0", [&] {
    if (world.rank() == 0) folder.emplace(options.run_folder, options.resume);
  });
  together(world, "run folder of the others", [&] {
    if (world.rank() != 0) folder.emplace(RunFolder::of_peer(path));
  });
  return std::move(*folder);
}

void start_flight_record(const RunFolder& folder, const comm::World& world) {
  if (world.size() == 1) return;
  base::make_directories(folder.trace());
  comm::start_flight_record(folder.trace() / comm::flight_file_name(world.rank()), world.rank(), world.size());
  comm::report_progress("set-up", 0);
}

/// One rank waits for nobody; what it does may take as long as it takes.
std::optional<comm::Watchdog> watch_over(const config::DistConfig& dist, const RunFolder& folder,
                                         const comm::World& world) {
  if (world.size() == 1) return std::nullopt;
  comm::WatchdogOptions options;
  options.rank = world.rank();
  options.set_up_timeout = std::chrono::minutes(dist.distributed_timeout_minutes);
  options.step_timeout = options.save_timeout = step_timeout(dist, options.set_up_timeout);
  options.folder = folder.trace();
  return std::optional<comm::Watchdog>(std::in_place, options);
}

Console::Output console_output(std::int64_t rank) {
  if (rank != 0) return Console::Output::kNone;
  return ::isatty(STDOUT_FILENO) != 0 ? Console::Output::kTerminal : Console::Output::kPlain;
}

bool is_standard_error(const std::filesystem::path& path) {
  struct stat file = {}, standard_error = {};
  return ::stat(path.c_str(), &file) == 0 && ::fstat(STDERR_FILENO, &standard_error) == 0 &&
         file.st_dev == standard_error.st_dev && file.st_ino == standard_error.st_ino;
}

void write_configuration(const config::ResolvedConfig& resolved, const RunFolder& folder) {
  base::write_file_atomically(folder.run_yaml(), config::to_yaml(resolved));
  if (resolved.config.logger.save_config_filepath) {
    base::write_file_atomically(*resolved.config.logger.save_config_filepath, config::to_yaml(resolved));
  }
}

/// The machines of the job, in order of the ranks.
std::vector<std::string> hosts_of(comm::World& world) {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, HOST_NAME_MAX);
  std::vector<std::string> hosts;
  for (const std::string& host : world.exchange("hosts", name)) {
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

/// From the set-up of the trainer to the end of its run; every end but a sudden one is put down in `attempts`.
base::ExitCode run_trainer(Trainer& trainer, const config::ResolvedConfig& resolved, const RunFolder& folder,
                           const Parallel& parallel, AttemptLog& attempts, Console& console, bool& has_begun) {
  std::optional<ExitDecision> stop;
  together(parallel.world, "set-up", [&] { stop = trainer.set_up(); });
  // Written only now: a folder whose set-up failed holds no run and can be used again. One that was interrupted is
  // resumed.
  if (parallel.is_first()) write_configuration(resolved, folder);
  has_begun = true;
  if (!stop) return trainer.run();
  attempts.set_cause(stop->cause);
  console.line(stop->message);
  return base::ExitCode::kInterrupted;
}

base::ExitCode train_in(comm::World& world, const config::ResolvedConfig& resolved, const TrainOptions& options,
                        const SignalWatch& signals, lens::StartupRecord& startup) {
  const config::DistConfig& dist = resolved.config.dist;
  compare_configurations(world, resolved);
  together(world, "resources", [&] {
    if (options.check_resources && options.ranks.local_rank == 0) options.check_resources();
  });
  const RunFolder folder = open_run_folder(world, options);
  if (world.size() > 1) startup.finish_phase("rendezvous");
  together(world, "flight records", [&] { start_flight_record(folder, world); });
  const Parallel parallel(world, resolved.config);
  const std::vector<std::string> hosts = hosts_of(world);
  AttemptLog attempts = parallel.is_first() ? AttemptLog(folder.path()) : AttemptLog();
  std::optional<TelemetryScope> telemetry;
  std::optional<Console> log;
  together(world, "telemetry and logs", [&] {
    telemetry.emplace(resolved, options, folder, parallel, attempts.run_id());
    log.emplace(folder.log(world.rank()), console_output(world.rank()));
  });
  signals.take();  // telemetry would end the process after its last words
  if (parallel.is_first()) attempts.start(telemetry->run_id(), hosts, world.size(), lens::ProcessEnvironment());
  Console& console = *log;
  bool has_begun = false;
  try {
    announce(resolved, folder, options.resume, console);
    for (const std::string& warning : telemetry->warnings()) console.line("telemetry: " + warning);
    for (const std::string& note : attempts.notes()) console.line("note: " + note);
    startup.finish_phase("initialize");
    set_num_threads(dist, options.ranks);
    if (resolved.config.model.deterministic_mode) at::globalContext().setDeterministicAlgorithms(true, false);
    startup.finish_phase("kernels");
    std::optional<comm::Watchdog> watchdog = watch_over(dist, folder, world);
    Trainer trainer(resolved, folder, options, parallel, watchdog ? &*watchdog : nullptr, console, startup, attempts,
                    telemetry->run_id());
    const base::ExitCode code = run_trainer(trainer, resolved, folder, parallel, attempts, console, has_begun);
    attempts.end(code);
    return code;
  } catch (const std::exception& error) {
    // The program also says it on standard error, which may be that file (rank_N.log of a launched rank).
    if (!is_standard_error(folder.log(world.rank()))) console.log_only(std::string("error: ") + error.what());
    const bool is_user_error = dynamic_cast<const base::UserError*>(&error) != nullptr;
    if (!has_begun && is_user_error) telemetry->discard();
    attempts.end(is_user_error ? base::ExitCode::kUserError : base::ExitCode::kTrainingFailure, error.what());
    throw;
  }
}

}  // namespace

base::ExitCode train(const config::ResolvedConfig& resolved, const TrainOptions& options) {
  lens::StartupRecord startup;
  startup.finish_phase("libraries", options.main_entry_ns);
  startup.finish_phase("config", options.config_ready_ns);
  const SignalWatch signals(resolved.config.train);
  tensor::install_host_allocator();
  comm::set_interruption_check([] { return SignalWatch::received() != 0; });
  std::optional<comm::World> met;
  try {
    met.emplace(options.ranks, world_options(resolved.config.dist, options.ranks));
  } catch (const comm::MeetingInterrupted&) {
    if (options.ranks.rank == 0) std::cerr << "exiting program after receiving a signal, before all ranks have met.\n";
    return base::ExitCode::kInterrupted;
  }
  comm::World& world = *met;
  try {
    const base::ExitCode code = train_in(world, resolved, options, signals, startup);
    world.leave();
    return code;
  } catch (const base::UserError&) {
    world.leave();  // the ranks have agreed on it: all of them are on their way out
    throw;
  } catch (const comm::CommunicationError& error) {
    world.abandon();
    throw base::TrainingError(error.what());
  } catch (const std::exception&) {
    world.abandon();
    throw;
  }
}

}  // namespace pharos::train
