#include "pharos/launch/slurm/allocation.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string>

#include "pharos/launch/slurm/cluster_facts.h"

namespace pharos::launch::slurm {
namespace {

/// A positive number that is all of `text`, else 0.
std::int64_t whole_number(std::string_view text) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? number : 0;
}

std::string remedy(const SlurmRequest& request) {
  const std::string ranks = std::to_string(request.job.gpus_per_node);
  const std::string nodes = "salloc --nodes=" + std::to_string(request.job.num_nodes);
  return "Leave this allocation (exit) and ask for one that has them: " + nodes +
         (request.asks_for_gpus ? " --exclusive --gpus-per-node=" : " --ntasks-per-node=") + ranks +
         "; or start fewer ranks on a node: --gpus-per-node.";
}

}  // namespace

std::vector<std::int64_t> parse_cpus_per_node(std::string_view text) {
  std::vector<std::int64_t> cpus;
  std::istringstream entries{std::string(text)};
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::int64_t times = 1;
    if (const std::size_t open = entry.find("(x"); open != std::string::npos && entry.ends_with(')')) {
      times = whole_number(std::string_view(entry).substr(open + 2, entry.size() - open - 3));
      entry.resize(open);
    }
    const std::int64_t count = whole_number(entry);
    if (count < 1 || times < 1 || times > 1'000'000) return {};
    cpus.insert(cpus.end(), static_cast<std::size_t>(times), count);
  }
  return cpus;
}

std::optional<std::int64_t> parse_job_gpus(std::string_view text) {
  constexpr std::string_view kField = "JOB_GRES=";
  const std::size_t start = text.find(kField);
  if (start == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(start + kField.size());
  return count_gpus(std::string(rest.substr(0, rest.find_first_of(" \n"))));
}

void check_allocation(const SlurmRequest& request, const Allocation& allocation, Problems& problems) {
  const std::int64_t nodes = request.job.num_nodes;
  const std::int64_t ranks = request.job.gpus_per_node;
  if (nodes > allocation.num_nodes) return;  // said already
  const auto of_nodes = [&](const std::string& thing) {
    return std::to_string(nodes * ranks) + " ranks on " + std::to_string(nodes) + (nodes == 1 ? " node" : " nodes") +
           " need " + std::to_string(ranks) + " " + thing + " of each; ";
  };
  const auto used = std::min<std::size_t>(static_cast<std::size_t>(nodes), allocation.cpus.size());
  const auto& words = request.srun_arguments;
  const bool shares_cpus = std::any_of(words.begin(), words.end(),
                                       [](const std::string& word) { return word == "--overcommit" || word == "-O"; });
  const auto least = std::min_element(allocation.cpus.begin(), allocation.cpus.begin() + static_cast<long>(used));
  if (used > 0 && *least < ranks && !shares_cpus) {
    problems.push_back({.what = of_nodes("CPUs") + "this allocation has only " + std::to_string(*least) + " on one.",
                        .where = "SLURM_JOB_CPUS_PER_NODE",
                        .fix = remedy(request)});
  }
  if (!request.asks_for_gpus || !allocation.gpus || *allocation.gpus >= ranks * allocation.num_nodes) return;
  problems.push_back(
      {.what = of_nodes("GPUs") + "this allocation of " + std::to_string(allocation.num_nodes) +
               (allocation.num_nodes == 1 ? " node" : " nodes") + " has " + std::to_string(*allocation.gpus) + ".",
       .where = "scontrol show job, SLURM_GPUS_ON_NODE",
       .fix = remedy(request) + " Where SLURM does not manage the GPUs, add --no-gpu-resource-request."});
}

}  // namespace pharos::launch::slurm
