#include "pharos/launch/slurm/preflight.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include "pharos/base/text.h"
#include "pharos/config/problem.h"
#include "pharos/launch/cluster/named_paths.h"
#include "pharos/launch/slurm/job_limits.h"

namespace pharos::launch::slurm {
namespace fs = std::filesystem;
namespace {

/// The remedy for a path that no mount shows.
std::string remedy_for_hidden(const NamedPath& named, const ContainerView& view) {
  const fs::path here = fs::absolute(named.path).lexically_normal();
  if (!is_there(here, named.kind)) return "It is not on this machine either: correct the path.";
  if (const auto inside = view.in_container(here))
    return "In the container it is " + inside->string() + ": write " + named.field + "=" + inside->string() + ".";
  if (fs::path(named.path).is_relative())
    return "The working folder is not in the container: mount it, or give an absolute path that is.";
  const std::string folder = (named.kind == PathKind::kFolder ? here : here.parent_path()).string();
  return "Add the mount " + folder + ":" + folder + " to --mounts or $MOUNT.";
}

/// A job that asks for more waits for good.
void check_time(const SlurmRequest& request, const NodeGroup& group, Problems& problems) {
  if (request.time.empty() || !group.time_limit_seconds) return;
  try {
    const auto limit = parse_time_limit(request.time);
    if (limit && *limit <= *group.time_limit_seconds) return;
  } catch (const base::UserError&) {
    return;  // check_limits says so
  }
  const std::string minutes = std::to_string(*group.time_limit_seconds / 60);
  problems.push_back({.what = "--time " + request.time + " is more than partition " + group.partition +
                              " allows: " + minutes + " minutes.",
                      .where = "--time or $SBATCH_TIMELIMIT",
                      .fix = "Ask for at most --time " + minutes +
                             ", or for another partition; --requeue or --chain continue a run that is longer."});
}

/// sbatch would say so too, but after the other problems are solved, and of fewer nodes not at all.
void check_nodes(const SlurmRequest& request, const std::vector<NodeGroup>& all, double memory_bytes,
                 Problems& problems) {
  std::vector<NodeGroup> nodes;
  std::set<std::string> partitions;
  for (const NodeGroup& group : all) {
    partitions.insert(group.partition);
    if (request.partition.empty() ? group.is_default : group.partition == request.partition) nodes.push_back(group);
  }
  if (request.partition.find(',') != std::string::npos) return;  // SLURM takes the one that is free first
  const std::string list = base::join({partitions.begin(), partitions.end()}, ", ");
  if (nodes.empty()) {
    problems.push_back({.what = request.partition.empty() ? "SLURM has no default partition."
                                                          : "There is no partition '" + request.partition + "'.",
                        .where = "--partition or $SBATCH_PARTITION",
                        .why = "sinfo knows " + list + ".",
                        .fix = "Name one of them with --partition."});
    return;
  }
  const std::string place = "partition " + nodes.front().partition;
  const auto check = [&](const std::string& thing, const std::string& option, std::int64_t needed,
                         const std::function<std::int64_t(const NodeGroup&)>& has, const std::string& fix) {
    std::int64_t count = 0;
    std::int64_t most = 0;
    for (const NodeGroup& group : nodes) {
      if (has(group) >= needed) count += group.num_nodes;
      most = std::max(most, has(group));
    }
    if (count >= request.job.num_nodes) return;
    problems.push_back({.what = std::to_string(request.job.num_nodes) + " nodes with " + thing + " are asked for; " +
                                place + " has " + std::to_string(count) + ".",
                        .where = option,
                        .why = "A node there has at most " + std::to_string(most) + ".",
                        .fix = fix});
  };
  std::int64_t total = 0;
  for (const NodeGroup& group : nodes) total += group.num_nodes;
  if (total < request.job.num_nodes) {
    problems.push_back({.what = std::to_string(request.job.num_nodes) + " nodes are asked for; " + place + " has " +
                                std::to_string(total) + ".",
                        .where = "--nodes",
                        .fix = "Ask for fewer, or for another partition."});
    return;
  }
  check_time(request, nodes.front(), problems);
  const std::int64_t ranks = request.job.gpus_per_node;
  if (request.asks_for_gpus) {
    check(
        std::to_string(ranks) + " GPUs", "--gpus-per-node or $GPUS_PER_NODE", ranks,
        [](const NodeGroup& group) { return group.gpus; },
        "Set GPUS_PER_NODE to what a node has; where SLURM does not manage the GPUs, add --no-gpu-resource-request.");
  }
  check(
      std::to_string(ranks) + " CPUs, one for each rank,", "--gpus-per-node or $GPUS_PER_NODE", ranks,
      [](const NodeGroup& group) { return group.cpus; }, "Ask for fewer ranks on a node.");
  const auto megabytes = static_cast<std::int64_t>(memory_bytes / (1 << 20));
  if (megabytes > 0) {
    check(
        std::to_string(megabytes) + " MiB of memory", "train.micro_batch_size", megabytes,
        [](const NodeGroup& group) {
          // 1 MiB is what SLURM says of a node without RealMemory.
          const std::int64_t has = group.memory_bytes >> 20;
          return has > 1 ? has : std::numeric_limits<std::int64_t>::max();
        },
        "`pharos plan` shows what needs it; take fewer ranks on a node or smaller microbatches.");
  }
}

}  // namespace

void add_problems(Problems& problems, const base::UserError& error) {
  const auto* list = dynamic_cast<const config::ConfigErrors*>(&error);
  if (list == nullptr) {
    problems.push_back(error.parts());
    return;
  }
  for (const config::Problem& problem : list->problems())
    problems.push_back({.what = problem.message, .where = problem.origin, .fix = problem.remedy});
}

void throw_if_any(const Problems& problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) throw base::UserError(problems.front());
  std::string text = std::to_string(problems.size()) + " problems, found before the queue:";
  for (const base::UserError::Parts& problem : problems) {
    text += "\n- " + problem.what;
    if (!problem.where.empty()) text += "\n    where: " + problem.where;
    if (!problem.why.empty()) text += "\n    why: " + problem.why;
    if (!problem.fix.empty()) text += "\n    fix: " + problem.fix;
  }
  throw base::UserError({.what = text});
}

void check_container(const ContainerRequest& container, const std::vector<Mount>& mounts, Problems& problems) {
  std::error_code ignored;
  if (!fs::is_regular_file(container.image, ignored)) {
    problems.push_back({.what = "There is no image '" + container.image + "'.",
                        .where = "--image or $SQSH",
                        .fix = "Make it with `pharos image build`, name another one, or add --no-container."});
  } else {
    std::ifstream file(container.image, std::ios::binary);
    std::array<char, 4> magic = {};
    if (!file.read(magic.data(), magic.size()) || std::string_view(magic.data(), magic.size()) != "hsqs") {
      problems.push_back({.what = "'" + container.image + "' is not a squashfs file.",
                          .where = "--image or $SQSH",
                          .why = "It does not start with the four letters hsqs; pyxis would fail on every node.",
                          .fix = "Make it anew with `pharos image build`."});
    }
  }
  for (const Mount& mount : mounts) {
    if (is_file_there(mount.source)) continue;
    problems.push_back(
        {.what = "The source '" + mount.source.string() + "' of the mount " + mount.text() + " does not exist.",
         .where = "--mounts or $MOUNT",
         .fix = "Correct or leave out this entry."});
  }
}

bool check_paths(const config::ResolvedConfig& resolved, const ContainerView* view, Problems& problems) {
  bool is_readable = true;
  for (const NamedPath& named : paths_of(resolved.config)) {
    const std::size_t before = problems.size();
    const auto here = view == nullptr ? std::optional<fs::path>(named.path) : view->on_host(named.path);
    if (!here) {
      problems.push_back({.what = named.field + " = " + named.path + " is not visible inside the container.",
                          .where = where_from(resolved, named),
                          .why = "No mount shows it there.",
                          .fix = remedy_for_hidden(named, *view)});
    } else if (!is_there(*here, named.kind)) {
      problems.push_back({.what = named.field + " = " + named.path + " does not exist" +
                                  (view == nullptr ? "." : ": it would be " + here->string() + " here."),
                          .where = where_from(resolved, named),
                          .why = named.kind == PathKind::kPrefix ? "A prefix stands for two files, .bin and .idx." : "",
                          .fix = "Correct the path."});
    }
    if (problems.size() != before && named.field == "model.hf_path") is_readable = false;
  }
  return is_readable;
}

void check_recipe_path(const std::string& recipe, const ContainerView& view, Problems& problems) {
  if (!is_recipe_path(recipe) || !is_file_there(recipe)) return;
  const auto here = view.on_host(recipe);
  if (here && is_file_there(*here)) return;
  std::string fix = remedy_for_hidden({.field = "recipe", .path = recipe, .kind = PathKind::kFile}, view);
  if (const auto inside = view.in_container(fs::absolute(recipe).lexically_normal())) {
    fix = "In the container it is " + inside->string() +
          ": mount its folder under the name that it has here, or write the path relative to the working folder.";
  }
  problems.push_back({.what = "The recipe file " + recipe + " is not visible inside the container.",
                      .where = "command line",
                      .why = "The tasks read it themselves.",
                      .fix = fix});
}

std::optional<fs::path> check_run_folder(const fs::path& folder, const ContainerView& view, Problems& problems) {
  const auto inside = view.in_container(folder);
  if (inside && !view.mount_of(*inside)->is_read_only()) return inside;
  const std::string parent = folder.parent_path().string();
  if (inside) {
    problems.push_back({.what = "The run folder '" + folder.string() + "' cannot be written inside the container.",
                        .where = "--run-dir",
                        .why = "The mount " + view.mount_of(*inside)->text() + " is for reading only.",
                        .fix = "Mount it with rw, or choose a folder below another mount."});
    return std::nullopt;
  }
  problems.push_back({.what = "The run folder '" + folder.string() + "' is not visible inside the container.",
                      .where = "--run-dir",
                      .why = "What the ranks write there would be lost with the container.",
                      .fix = "Add the mount " + parent + ":" + parent +
                             " to --mounts or $MOUNT, or choose a folder "
                             "below one of the mounts."});
  return std::nullopt;
}

void check_sbatch_arguments(const SlurmRequest& request, Problems& problems) {
  const std::string log =
      "Leave it out: the log is slurm-JOB.log in the run folder, where the job's exit code and "
      "`pharos goodput` are read from it. --run-dir names the folder.";
  const struct {
    std::string name, letter, fix;
  } kOptions[] = {
      {"--output", "-o", log},
      {"--error", "-e", log},
      {"--open-mode", "", log},
      {"--wait", "-W", "Take --wait of pharos launch."},
      {"--array", "-a", "Take --array of pharos launch."},
      {"--requeue", "", "Take --requeue of pharos launch."},
      {"--no-requeue", "", "Leave it out: without --requeue of pharos launch it is so."},
      {"--export", "", "Leave it out: the job gets all variables from here. --env passes one into a container, too."},
      {"--partition", "-p", "Take --partition of pharos launch."},
      {"--time", "-t", "Take --time of pharos launch."},
      {"--signal", "", "Take --signal of pharos launch."},
      {"--nodes", "-N", "Take --nodes of pharos launch."},
      {"--ntasks-per-node", "", "Take --gpus-per-node of pharos launch."},
  };
  for (const std::string& word : request.sbatch_arguments) {
    const std::string given = word.substr(0, word.find_first_of("= "));
    for (const auto& [name, letter, fix] : kOptions) {
      // sbatch takes the beginning of a name for it, as long as no other option begins so.
      const bool is_long = given.size() > 4 && name.starts_with(given);
      const bool is_short = !letter.empty() && !word.starts_with("--") && word.starts_with(letter);
      if (!is_long && !is_short) continue;
      problems.push_back({.what = "--sbatch-arg " + word + " would take " + name + " of the job from Pharos.",
                          .where = "--sbatch-arg",
                          .fix = fix});
      break;
    }
  }
}

void check_limits(const SlurmRequest& request, Problems& problems) {
  const auto collect = [&problems](const auto& action) {
    try {
      action();
    } catch (const base::UserError& error) {
      add_problems(problems, error);
    }
  };
  std::optional<std::int64_t> limit, signal;
  if (!request.time.empty()) collect([&] { limit = parse_time_limit(request.time); });
  if (!request.signal.empty()) collect([&] { signal = parse_signal(request.signal).seconds; });
  if (!limit || !signal || *limit > *signal) return;
  problems.push_back(
      {.what = "--time " + request.time + " is " + std::to_string(*limit) + " s; --signal " + request.signal +
               " would come " + std::to_string(*signal) + " s before its end.",
       .where = "--time, --signal",
       .why = "The ranks would be told to leave as soon as they start.",
       .fix = "Give the job more time, or fewer seconds to save: --signal TERM@" + std::to_string(*limit / 4) + "."});
}

void check_signal(const SlurmRequest& request, const config::ResolvedConfig& resolved, Problems& problems,
                  std::vector<std::string>& notes) {
  if (request.signal.empty()) return;
  LimitSignal signal;
  try {
    signal = parse_signal(request.signal);
  } catch (const base::UserError&) {
    return;  // check_limits says so
  }
  static constexpr int kNumbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};  // of config::ExitSignal
  const config::TrainConfig& train = resolved.config.train;
  const bool has_handler = train.exit_signal_handler;
  const bool is_term = signal.number == SIGTERM;
  if (has_handler &&
      (is_term || (!signal.is_of_shell && signal.number == kNumbers[static_cast<int>(train.exit_signal)])))
    return;
  if (signal.number == SIGINT && !signal.is_of_shell) return;
  const std::string what = "The ranks do not save on the signal of --signal " + request.signal + ".";
  std::string why = "They save on SIGINT, SIGTERM and train.exit_signal.";
  if (signal.is_of_shell) why = "The batch shell passes on SIGTERM alone.";
  if (!has_handler) why = resolved.describe("train.exit_signal_handler") + ": they save on SIGINT alone.";
  why += " The steps since the last save would be lost at each time limit.";
  if (is_term && !request.is_requeued && !request.is_chained) {
    notes.push_back(what + " " + why);
    return;
  }
  problems.push_back({.what = what,
                      .where = "--signal",
                      .why = why,
                      .fix = has_handler ? "Take --signal TERM@120; for SIGUSR1, SIGUSR2 or SIGHUP also set "
                                           "train.exit_signal, for example train.exit_signal=SIGUSR1."
                                         : "Leave train.exit_signal_handler on, or take --signal INT@120."});
}

void check_cluster(const SlurmRequest& request, const ClusterFacts& facts, double memory_bytes, Problems& problems) {
  if (!facts.missing_commands.empty()) {
    problems.push_back({.what = "There is no SLURM here: " + base::join(facts.missing_commands, ", ") +
                                (facts.missing_commands.size() == 1 ? " is" : " are") + " not in PATH.",
                        .where = "PATH",
                        .fix = "Log in to a machine of the cluster or load its SLURM module. `--dry-run` shows the "
                               "script without SLURM; `pharos train RECIPE --nproc N` trains on this machine."});
    return;
  }
  if (!facts.silence.empty()) {
    problems.push_back({.what = "SLURM does not answer: " + facts.silence,
                        .where = "sinfo",
                        .fix = "Check that slurmctld runs and that SLURM_CONF or /etc/slurm/slurm.conf is right."});
    return;
  }
  const auto& types = facts.mpi_types;
  if (!types.empty() && std::find(types.begin(), types.end(), request.mpi) == types.end()) {
    problems.push_back({.what = "srun has no --mpi=" + request.mpi + ".",
                        .where = "--mpi",
                        .why = "It has " + base::join(types, ", ") + ".",
                        .fix = "Add --mpi none: Pharos does not need PMI, its ranks meet at MASTER_ADDR."});
  }
  if (request.job.container && !facts.has_pyxis) {
    problems.push_back({.what = "srun cannot start containers: it has no --container-image.",
                        .where = "--image or $SQSH",
                        .why = "That option comes with the plug-in pyxis.",
                        .fix = "Install pyxis and enroot, or add --no-container where Pharos is on the nodes."});
  }
  check_nodes(request, facts.nodes, memory_bytes, problems);
}

}  // namespace pharos::launch::slurm
