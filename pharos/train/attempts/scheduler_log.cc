#include "pharos/train/attempts/scheduler_log.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>

namespace pharos::train {
namespace {

/// Ranks print into the same file: only SLURM's own lines count.
bool is_node_failure(const std::string& line) {
  const bool is_slurm = line.starts_with("srun: ") || line.starts_with("slurmstepd: ");
  return is_slurm &&
         (line.find("Node failure on ") != std::string::npos || line.find("DUE TO NODE FAILURE") != std::string::npos);
}

/// A job's number comes from a file and becomes part of a path.
bool is_job_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::vector<std::string> read_node_failures(const std::filesystem::path& run_folder,
                                            const std::vector<AttemptRecord>& attempts) {
  std::vector<std::string> failures;
  std::set<std::string> jobs, known;
  for (const AttemptRecord& record : attempts) {
    if (!is_job_number(record.job_id) || !jobs.insert(record.job_id).second) continue;
    std::string name = "slurm-";
    name.append(record.job_id).append(".log");
    std::error_code error;
    if (!std::filesystem::is_regular_file(run_folder / name, error)) continue;
    std::ifstream log(run_folder / name);
    for (std::string line; std::getline(log, line);) {
      if (!is_node_failure(line)) continue;
      std::string text = name;
      text.append(": ").append(line);
      if (known.insert(text).second) failures.push_back(std::move(text));
    }
  }
  return failures;
}

}  // namespace pharos::train
