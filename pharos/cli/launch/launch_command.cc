#include "pharos/cli/launch/launch_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
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
#include "pharos/launch/slurm/job_script.h"
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

std::string log_of(const slurm::SlurmRequest& request, const std::string& job) {
  return (request.job.run_folder / ("slurm-" + job + (request.array.empty() ? ".log" : "_*.log"))).string();
}

void tell(const slurm::SlurmRequest& request, const std::vector<std::string>& jobs) {
  const std::string all = base::join(jobs, " ");
  std::cout << "Submitted job " << base::join(jobs, ", ") << ".\n"
            << "  run folder:     " << request.job.run_folder.string() << "\n"
            << "  follow:         tail -F " << log_of(request, jobs.front()) << "\n"
            << "  state:          squeue -j " << base::join(jobs, ",") << "\n"
            << "  save and leave: scancel --signal=TERM " << all << "\n"
            << "  cancel:         scancel " << all << "\n"
            << std::flush;
}

[[noreturn]] void refuse_submission(const base::CommandResult& result, const std::vector<std::string>& jobs) {
  throw base::UserError({.what = "sbatch did not take the job: " + base::last_lines(result.error, 1),
                         .where = "sbatch, code " + std::to_string(result.exit_code),
                         .why = jobs.empty() ? "" : "Submitted before: " + base::join(jobs, ", ") + ".",
                         .fix = "`pharos launch … --dry-run` shows the script."});
}

void submit(const slurm::SlurmRequest& request, const LaunchOptions& options) {
  const fs::path path = request.job.run_folder / "launch.sbatch";
  base::make_directories(request.job.run_folder);
  base::write_file_atomically(path, slurm::batch_script(request));
  std::vector<std::string> jobs;
  for (std::int64_t index = 1; index <= options.chain_length; ++index) {
    base::Command command{.words = {"sbatch", "--parsable"}};
    if (!jobs.empty()) command.words.push_back("--dependency=afterany:" + jobs.back());
    const bool is_last = index == options.chain_length;
    if (options.waits && is_last) {
      command.words.emplace_back("--wait");
    } else {
      command.limit_ms = 60'000;
    }
    command.words.insert(command.words.end(), {path.string(), std::to_string(index)});
    bool is_told = false;
    command.on_line = [&](std::string_view line) {
      const std::string number = job_number(line);
      if (is_told || number.empty() || number.find_first_not_of("0123456789") != std::string::npos) return;
      is_told = true;
      jobs.push_back(number);
      if (is_last) tell(request, jobs);
    };
    const base::CommandResult result = base::run_command(command);
    if (!is_told) refuse_submission(result, jobs);
    if (is_last) set_exit_code(result.exit_code);
  }
}

void run_launch(const LaunchOptions& options) {
  if (!options.node_list.empty()) {
    for (const std::string& host : base::expand_node_list(options.node_list)) std::cout << host << "\n";
    return;
  }
  const lens::ProcessEnvironment environment;
  const CheckedRequest request = make_launch_request(options, environment);
  for (const std::string& note : request.notes) std::cerr << "note: " << note << "\n";
  const bool in_allocation = is_in_allocation(environment);
  if (options.is_dry_run) {
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
