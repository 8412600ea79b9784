// A job of several ranks on this machine: `pharos train RECIPE --nproc N`.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "pharos/launch/attempt.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::launch {

struct JobOptions {
  std::int64_t num_ranks = 1;
  std::filesystem::path program;       ///< of every rank
  std::vector<std::string> arguments;  ///< sub-command first; `--run-dir run_folder` is added behind it
  std::filesystem::path run_folder;    ///< made where it is missing
  bool is_resumed = false;             ///< `arguments` have --resume already
  std::int64_t max_restarts = 0;
  std::uint16_t port = 0;  ///< where the ranks meet; 0: a free one, a new one at each attempt
  std::chrono::milliseconds restart_delay = std::chrono::seconds(1);
  Patience patience = {};
};

/// Starts the ranks as processes of their own and waits until all have ended. Rank 0 has the launcher's standard output
/// and error, rank N writes to rank_N.log of the run folder. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on
/// to every rank; Ctrl-Z stops and continues them. When a rank fails, the others are ended and `report` gets what is
/// known: who failed first, how, where it stood, its last lines, who waited for whom.
///
/// A job whose first failure was a signal, code 3 or code 16 is started again up to `max_restarts` times, with --resume
/// once there is a run.yaml, until two attempts in a row end at the same step or somebody asked the job to end.
///
/// Returns exit_code_of() the last attempt. Throws UserError when the port is taken, the run folder cannot be written
/// or is in use by another job, or no process can be made; then nothing is left behind. Reaps every child of this
/// process, so call it where there are no others.
int run_local_job(const JobOptions& options, std::ostream& report);

/// JobOptions::port as MASTER_PORT says it, else 0. UserError when it is no port, or when this process is itself a rank
/// of a job (RANK, or a SLURM step of several tasks): ranks cannot start further ranks.
std::uint16_t find_job_port(const lens::Environment& environment);

/// `words` (a command line) without the options `names` and their values, in the forms `--name value` and
/// `--name=value`. What follows a bare `--` is left as it is.
std::vector<std::string> without_options(const std::vector<std::string>& words, const std::vector<std::string>& names);

}  // namespace pharos::launch
