#include "pharos/cli/launch/launch_command.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
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
  const bool is_chain = jobs.size() > 1;
  std::vector<std::string> logs;
  for (const std::string& job : jobs) logs.push_back(log_of(request, job));
  // The waiting ones first: the end of a job starts the next.
  const std::string last_to_first = base::join({jobs.rbegin(), jobs.rend()}, " ");
  std::cout << (is_chain ? "Submitted jobs " + base::join(jobs, ", ") + ", each to continue the one before.\n"
                         : "Submitted job " + all + ".\n")
            << "  run folder:     " << request.job.run_folder.string() << "\n"
            << "  follow:         tail -F " << base::join(logs, " ") << "\n"
            << "  state:          squeue -j " << base::join(jobs, ",") << "\n"
            << "  save and leave: " << (is_chain ? "scancel --state=PENDING " + last_to_first + "; " : "")
            << "scancel --signal=TERM " << all << "\n"
            << "  cancel:         scancel " << last_to_first << "\n"
            << std::flush;
}

/// A remedy for the commonest of sbatch's refusals.
std::string remedy_for(const std::string& message) {
  const struct {
    const char* part;
    const char* fix;
  } remedies[] = {
      {"time limit", "Ask for less with --time, or for another --partition (sinfo -o '%P %l' shows their limits)."},
      {"account", "Name an account of yours with --account, and a partition it may use."},
      {"qos", "Name a quality of service that you may use with --qos; sacctmgr show assoc shows yours."},
      {"partition", "Name a partition that you may use with --partition."},
      {"feature", "Correct --constraint: sinfo -o '%f' shows the features of the nodes."},
      {"gres", "Ask for GPUs as the nodes have them (GPUS_PER_NODE), or add --no-gpu-resource-request."},
      {"array", "Correct --array, for example --array 0-3."},
      {"begin time", "Correct --sbatch-arg=--begin=…."},
      {"submit", "Wait until some of your jobs have ended."},
      {"node configuration", "Ask for fewer ranks, CPUs or memory of a node, or for another --partition."},
      {"option", "Correct the --sbatch-arg that it names."},
  };
  std::string lower = message;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  for (const auto& [part, fix] : remedies) {
    if (lower.find(part) != std::string::npos) return fix;
  }
  return "`pharos launch … --dry-run` shows the script.";
}

[[noreturn]] void refuse_submission(const base::CommandResult& result, const std::vector<std::string>& jobs) {
  std::string message = result.timed_out ? "no answer within a minute" : base::last_lines(result.error, 5);
  constexpr std::string_view kPrefix = "sbatch: error: ";
  for (std::size_t at = 0; (at = message.find(kPrefix, at)) != std::string::npos;) message.erase(at, kPrefix.size());
  throw base::UserError({.what = "sbatch did not take the job: " + message,
                         .where = "sbatch, code " + std::to_string(result.exit_code),
                         .why = jobs.empty() ? "" : "Submitted before: " + base::join(jobs, ", ") + ".",
                         .fix = remedy_for(message)});
}

void submit(const slurm::SlurmRequest& request, const LaunchOptions& options) {
  const fs::path path = request.job.run_folder / "launch.sbatch";
  std::error_code unknown;  // what is wrong with the folder is said when it is made
  const bool is_new = !fs::exists(request.job.run_folder, unknown);
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
    if (!is_told) {
      if (is_new && jobs.empty() && !result.timed_out) {
        std::error_code ignored;
        fs::remove(path, ignored);
        fs::remove(request.job.run_folder, ignored);  // it is left where something else is in it
      }
      refuse_submission(result, jobs);
    }
    if (is_last) set_exit_code(result.exit_code);
  }
}

void run_launch(const LaunchOptions& options) {
  if (options.node_list) {
    for (const std::string& host : base::expand_node_list(*options.node_list)) std::cout << host << "\n";
    return;
  }
  const lens::ProcessEnvironment environment;
  const CheckedRequest request = make_launch_request(options, environment);
  for (const std::string& note : request.notes) std::cerr << "note: " << note << "\n";
  for (const std::string& warning : request.warnings) std::cerr << "warning: " << warning << "\n";
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
