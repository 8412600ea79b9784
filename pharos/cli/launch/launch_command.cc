#include "pharos/cli/launch/launch_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/node_list.h"
#include "pharos/base/subprocess.h"
#include "pharos/base/text.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/launch/launch_kubernetes.h"
#include "pharos/cli/launch/launch_options.h"
#include "pharos/cli/launch/launch_request.h"
#include "pharos/launch/slurm/cluster_facts.h"
#include "pharos/launch/slurm/job_script.h"
#include "pharos/launch/slurm/shell_text.h"
#include "pharos/launch/slurm/submission.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;
namespace slurm = launch::slurm;

/// This process becomes the script, which becomes srun.
[[noreturn]] void run_in_allocation(const slurm::SlurmRequest& request) {
  const fs::path path = request.job.run_folder / "launch.sh";
  base::make_directories(request.job.run_folder);
  base::write_file_atomically(path, slurm::allocation_script(request));
  std::cerr.flush();
  execlp("bash", "bash", path.c_str(), static_cast<char*>(nullptr));
  throw base::UserError({.what = std::string("bash cannot be started: ") + std::strerror(errno) + ".",
                         .where = path.string(),
                         .fix = "Install bash."});
}

/// Number of the job from what `sbatch --parsable` prints, "123" or "123;cluster".
std::string job_number(std::string_view line) { return std::string(line.substr(0, line.find(';'))); }

[[noreturn]] void refuse_submission(const base::CommandResult& result, const std::vector<std::string>& jobs) {
  std::string message = result.timed_out ? "no answer within a minute" : base::last_lines(result.error, 5);
  constexpr std::string_view kPrefix = "sbatch: error: ";
  for (std::size_t at = 0; (at = message.find(kPrefix, at)) != std::string::npos;) message.erase(at, kPrefix.size());
  base::UserError::Parts parts = slurm::refusal(message, jobs);
  parts.where = "sbatch, code " + std::to_string(result.exit_code);
  throw base::UserError(parts);
}

/// sbatch --wait gives 0 of a job that left no code: its node failed, or it was cancelled in the queue.
bool is_completed(const std::string& job) {
  const base::CommandResult states =
      base::run_command({.words = {"squeue", "-h", "-t", "all", "-j", job, "-o", "%T"}, .limit_ms = 60'000});
  std::istringstream lines(states.output);
  for (std::string state; std::getline(lines, state);) {
    if (state != "COMPLETED") return false;
  }
  return true;  // also where SLURM has forgotten the job or does not answer
}

void submit(const slurm::SlurmRequest& request, const LaunchOptions& options) {
  const fs::path path = request.job.run_folder / "launch.sbatch";
  std::error_code unknown;  // what is wrong with the folder is said when it is made
  const bool is_new = options.run_folder.empty() || !fs::exists(request.job.run_folder, unknown);
  base::make_directories(request.job.run_folder);
  base::write_file_atomically(path, slurm::batch_script(request));
  const std::vector<std::string> sbatch_options = slurm::batch_options(request);
  std::vector<std::string> jobs;
  for (std::int64_t index = 1; index <= options.chain_length; ++index) {
    base::Command command{.words = {"sbatch", "--parsable"}};
    command.words.insert(command.words.end(), sbatch_options.begin(), sbatch_options.end());
    if (!jobs.empty()) command.words.push_back("--dependency=afterany:" + jobs.back());
    const bool is_last = index == options.chain_length;
    if (options.waits && is_last) {
      command.words.emplace_back("--wait");
    } else {
      command.limit_ms = 60'000;
    }
    command.words.push_back(path.string());
    command.words.insert(command.words.end(), jobs.begin(), jobs.end());
    bool is_told = false;
    command.on_line = [&](std::string_view line) {
      const std::string number = job_number(line);
      if (is_told || number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return;
      is_told = true;
      jobs.push_back(number);
      if (is_last) std::cout << slurm::submission_text(request, jobs) << std::flush;
    };
    const base::CommandResult result = base::run_command(command);
    if (!is_told) {
      if (is_new && jobs.empty() && !result.timed_out) {
        std::error_code ignored;
        fs::remove(path, ignored);
        fs::remove(request.job.run_folder, ignored);  // it is left where something else is in it
      }
      refuse_submission(result, jobs);
    }
    if (!is_last) continue;
    const bool is_early = options.waits && result.exit_code == 0 && !is_completed(jobs.back());
    set_exit_code(is_early ? static_cast<int>(base::ExitCode::kInterrupted) : result.exit_code);
  }
}

void run_launch(const LaunchOptions& options) {
  if (options.node_list) {
    for (const std::string& host : base::expand_node_list(*options.node_list)) std::cout << host << "\n";
    return;
  }
  slurm::unset_slurm_habits();
  const lens::ProcessEnvironment environment;
  const CheckedRequest request = make_launch_request(options, environment);
  for (const std::string& note : request.notes) std::cerr << "note: " << note << "\n";
  for (const std::string& warning : request.warnings) std::cerr << "warning: " << warning << "\n";
  const bool in_allocation = is_in_allocation(environment);
  if (options.is_dry_run) {
    if (!in_allocation) {
      // sbatch opens the log before the script runs, and a job without its log fails without a word.
      std::cerr << "note: before you give this script to sbatch yourself: mkdir -p "
                << slurm::quote(request.slurm.job.run_folder.string()) << "\n";
    }
    std::cout << (in_allocation ? slurm::allocation_script(request.slurm) : slurm::batch_script(request.slurm));
  } else if (in_allocation) {
    run_in_allocation(request.slurm);
  } else {
    submit(request.slurm, options);
  }
}

}  // namespace

void add_launch_command(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  auto kubernetes = std::make_shared<KubernetesArguments>();
  CLI::App* command = app.add_subcommand("launch", "Train on a SLURM cluster: srun in an allocation, else sbatch");
  add_launch_options(*command, *options);
  add_kubernetes_options(*command, *kubernetes);
  command->callback(
      [options, kubernetes] { kubernetes->is_given ? print_manifest(*options, *kubernetes) : run_launch(*options); });
}

}  // namespace pharos::cli
