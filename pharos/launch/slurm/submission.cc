#include "pharos/launch/slurm/submission.h"

#include <algorithm>
#include <cctype>

#include "pharos/base/text.h"
#include "pharos/launch/slurm/shell_text.h"

namespace pharos::launch::slurm {
namespace {

/// The waiting ones first: the end of a job starts the next.
std::string last_to_first(const std::vector<std::string>& jobs) {
  return base::join({jobs.rbegin(), jobs.rend()}, " ");
}

/// The log of a job as a word of a shell; of an array the pattern of its tasks' logs.
std::string log_word(const SlurmRequest& request, const std::string& job) {
  const std::string stem = (request.job.run_folder / ("slurm-" + job)).string();
  return request.array.empty() ? quote(stem + ".log") : quote(stem + "_") + "*.log";
}

/// A remedy for sbatch's commonest refusals: the first whose words are all in the message.
std::string remedy_for(const std::string& message) {
  const struct {
    const char* part;
    const char* fix;
  } kRemedies[] = {
      {"accounting/qos policy",
       "Wait until some of your jobs have ended if you have as many as you may submit; else ask for fewer nodes or "
       "less --time. `sacctmgr show assoc where user=$USER` and `sacctmgr show qos` show the limits."},
      {"temporarily unable to accept", "Wait until some jobs have ended: SLURM holds as many as it can."},
      {"account", "Name an account of yours with --account, and a partition it may use."},
      {"time limit", "Ask for less with --time, or for another --partition (sinfo -o '%P %l' shows their limits)."},
      {"qos", "Name a quality of service that you may use with --qos; sacctmgr show assoc shows yours."},
      {"node count", "Ask for another number of --nodes: the partition has its own limits (scontrol show partition)."},
      {"node configuration", "Ask for fewer ranks, CPUs or memory of a node, or for another --partition."},
      {"partition", "Name a partition that you may use with --partition."},
      {"feature", "Correct --constraint: sinfo -o '%f' shows the features of the nodes."},
      {"gres", "Ask for GPUs as the nodes have them (GPUS_PER_NODE), or add --no-gpu-resource-request."},
      {"array", "Correct --array, for example --array 0-3; scontrol show config says MaxArraySize."},
      {"time specification", "Correct --sbatch-arg=--begin=…."},
      {"begin time", "Correct --sbatch-arg=--begin=…."},
      {"option", "Correct the --sbatch-arg that it names."},
  };
  std::string lower = message;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  for (const auto& [part, fix] : kRemedies) {
    if (lower.find(part) != std::string::npos) return fix;
  }
  return "`pharos launch … --dry-run` shows the script.";
}

}  // namespace

std::string submission_text(const SlurmRequest& request, const std::vector<std::string>& jobs) {
  const std::string all = base::join(jobs, " ");
  const bool is_chain = jobs.size() > 1;
  std::vector<std::string> logs;
  for (const std::string& job : jobs) logs.push_back(log_word(request, job));
  return (is_chain ? "Submitted jobs " + base::join(jobs, ", ") + ", each to continue the one before.\n"
                   : "Submitted job " + all + ".\n") +
         "  run folder:     " + request.job.run_folder.string() + "\n" + "  follow:         tail -F " +
         base::join(logs, " ") + "\n" + "  state:          squeue -j " + base::join(jobs, ",") + "\n" +
         "  save and leave: " + (is_chain ? "scancel --state=PENDING " + last_to_first(jobs) + "; " : "") +
         "scancel --signal=TERM " + all + "\n" + "  cancel:         scancel " + last_to_first(jobs) + "\n";
}

base::UserError::Parts refusal(const std::string& message, const std::vector<std::string>& jobs) {
  base::UserError::Parts parts{.what = "sbatch did not take the job: " + message, .fix = remedy_for(message)};
  if (jobs.empty()) return parts;
  const bool is_one = jobs.size() == 1;
  parts.why = (is_one ? "Of the chain job " : "Of the chain jobs ") + base::join(jobs, ", ") +
              (is_one ? " is" : " are") + " queued already and will run.";
  parts.fix += " To take back what is queued: scancel " + last_to_first(jobs) + ".";
  return parts;
}

}  // namespace pharos::launch::slurm
