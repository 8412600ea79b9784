#include "pharos/launch/slurm/cluster_facts.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/subprocess.h"
#include "pharos/launch/slurm/job_limits.h"

namespace pharos::launch::slurm {
namespace {

/// The number that `text` starts with: sinfo writes "4000+" where nodes of a line differ.
std::int64_t leading_number(std::string_view text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// nullopt: none, or one that sinfo does not tell ("n/a").
std::optional<std::int64_t> limit_of(const std::string& text) {
  try {
    return parse_time_limit(text);
  } catch (const base::UserError&) {
    return std::nullopt;
  }
}

}  // namespace

std::int64_t count_gpus(const std::string& resources) {
  std::int64_t count = 0;
  std::istringstream entries(resources);
  for (std::string entry; std::getline(entries, entry, ',');) {
    if (entry != "gpu" && !entry.starts_with("gpu:")) continue;
    const std::string counted = entry.substr(0, entry.find('('));
    const std::size_t colon = counted.rfind(':');
    const bool is_number =
        colon != std::string::npos && counted.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    count += is_number ? leading_number(std::string_view(counted).substr(colon + 1)) : 1;
  }
  return count;
}

std::vector<NodeGroup> parse_node_groups(std::string_view text) {
  std::vector<NodeGroup> groups;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> parts;
    std::istringstream columns(line);
    for (std::string part; std::getline(columns, part, '|');) parts.push_back(part);
    if (parts.size() < 5 || leading_number(parts[0]) == 0) continue;
    NodeGroup group{.num_nodes = leading_number(parts[0]),
                    .cpus = leading_number(parts[1]),
                    .memory_bytes = leading_number(parts[2]) << 20,
                    .gpus = count_gpus(parts[3]),
                    .partition = parts[4]};
    if (group.partition.ends_with('*')) {
      group.partition.pop_back();
      group.is_default = true;
    }
    if (parts.size() > 5) group.time_limit_seconds = limit_of(parts[5]);
    groups.push_back(group);
  }
  return groups;
}

std::vector<std::string> parse_mpi_types(std::string_view text) {
  std::vector<std::string> types;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("srun: MPI types are") || line.starts_with("MPI plugin types are")) continue;
    const std::size_t colon =
        line.find(": ");  // "specific pmix plugin versions available: pmix_v3,pmix_v4", "srun: pmix"
    std::string names = colon == std::string::npos ? line : line.substr(colon + 2);
    for (char& letter : names) {
      if (letter == ',') letter = ' ';
    }
    std::istringstream words(names);
    for (std::string word; words >> word;) types.push_back(word);
  }
  return types;
}

void unset_slurm_habits() {
  // Of sbatch: what has no option that says the opposite, and the log's place, which its exit code is read from.
  constexpr std::string_view kNames[] = {"SLURM_TIME_FORMAT", "SBATCH_WAIT", "SBATCH_ARRAY_INX", "SBATCH_SIGNAL",
                                         "SBATCH_ERROR"};
  constexpr std::string_view kPrefixes[] = {"SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_"};
  std::vector<std::string> found;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    const auto starts_it = [name](std::string_view prefix) { return name.starts_with(prefix); };
    if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
        std::any_of(std::begin(kPrefixes), std::end(kPrefixes), starts_it))
      found.emplace_back(name);
  }
  for (const std::string& name : found) unsetenv(name.c_str());
}

ClusterFacts read_cluster_facts(const std::vector<std::string>& needed_commands) {
  ClusterFacts facts;
  for (const std::string& name : needed_commands) {
    if (!base::find_program(name)) facts.missing_commands.push_back(name);
  }
  if (!facts.missing_commands.empty()) return facts;
  const auto ask = [](std::vector<std::string> words) {
    return base::run_command({.words = std::move(words), .limit_ms = 20'000});
  };
  const base::CommandResult nodes = ask({"sinfo", "-h", "-e", "-o", "%D|%c|%m|%G|%P|%l"});
  if (nodes.exit_code != 0) {
    facts.silence = nodes.error.substr(0, nodes.error.find('\n'));
    if (nodes.timed_out) facts.silence = "sinfo gave no answer within 20 s";
    if (facts.silence.empty()) facts.silence = "sinfo ended with code " + std::to_string(nodes.exit_code);
    return facts;
  }
  facts.nodes = parse_node_groups(nodes.output);
  const base::CommandResult mpi = ask({"srun", "--mpi=list"});
  if (mpi.exit_code == 0) facts.mpi_types = parse_mpi_types(mpi.output + mpi.error);
  facts.has_pyxis = ask({"srun", "--help"}).output.find("--container-image") != std::string::npos;
  return facts;
}

}  // namespace pharos::launch::slurm
