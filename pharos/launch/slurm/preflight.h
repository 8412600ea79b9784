// What is found wrong with a job before it waits in a queue, all of it at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/config/resolve.h"
#include "pharos/launch/slurm/cluster_facts.h"
#include "pharos/launch/slurm/mounts.h"
#include "pharos/launch/slurm/slurm_request.h"

namespace pharos::launch::slurm {

using Problems = std::vector<base::UserError::Parts>;

/// The parts of an error, one problem each where it is a list of them (config::ConfigErrors).
void add_problems(Problems& problems, const base::UserError& error);

/// Throws a UserError that lists every problem, unless there is none.
void throw_if_any(const Problems& problems);

/// The image is there and a squashfs file, the sources of the mounts are there. Needs no SLURM.
void check_container(const ContainerRequest& container, const std::vector<Mount>& mounts, Problems& problems);

/// Weights, data and tokenizer files that `resolved` names, each as a task gives it: shown by a mount where there is
/// `view` (null: no container), and there at all. Returns whether model.hf_path can be read from this machine.
bool check_paths(const config::ResolvedConfig& resolved, const ContainerView* view, Problems& problems);

/// A recipe that is given as a file is shown to the tasks under the same name.
void check_recipe_path(const std::string& recipe, const ContainerView& view, Problems& problems);

/// Where the tasks see the run folder `folder` of this machine; nullopt: no mount that can be written shows it.
std::optional<std::filesystem::path> check_run_folder(const std::filesystem::path& folder, const ContainerView& view,
                                                      Problems& problems);

/// No word for sbatch is one of the options that have a way of their own here, or that the job's script relies on.
void check_sbatch_arguments(const SlurmRequest& request, Problems& problems);

/// --time and --signal are what SLURM can read, and the signal comes after the start. Needs no SLURM.
void check_limits(const SlurmRequest& request, Problems& problems);

/// The ranks of `resolved` save on the signal of --signal. Where that is the default and only train.exit_signal_handler
/// is off, a job that does not come back gets one of `notes` instead.
void check_signal(const SlurmRequest& request, const config::ResolvedConfig& resolved, Problems& problems,
                  std::vector<std::string>& notes);

/// The partition is there, allows the time, and has nodes of that number, CPUs, GPUs and memory; --mpi and pyxis are
/// known to srun. memory_bytes: what the ranks of a node need of the machine's memory; 0: unknown.
void check_cluster(const SlurmRequest& request, const ClusterFacts& facts, double memory_bytes, Problems& problems);

}  // namespace pharos::launch::slurm
