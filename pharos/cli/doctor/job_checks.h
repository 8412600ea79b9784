// The checks of `pharos doctor` that need all ranks of the job.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "pharos/comm/rank_environment.h"
#include "pharos/launch/doctor/finding.h"
#include "pharos/launch/doctor/peers.h"

namespace pharos::cli {

struct JobCheckOptions {
  comm::RankEnvironment ranks;
  std::chrono::milliseconds arrival_limit = std::chrono::seconds(30);  ///< until all ranks have come
  std::chrono::milliseconds call_limit = std::chrono::seconds(30);     ///< of a collective
  std::string shared_folder;                                           ///< empty: not tested
  std::vector<std::string> only;                                       ///< names of checks; empty: all
};

/// Meets the other ranks and runs the checks with them. `report` gets what is found as soon as it is, on rank 0 also
/// what the other nodes found about themselves; other ranks get only what kept them from going on. Returns the worst
/// verdict of all ranks, the same on each of them that got this far. `has_met` becomes true when all ranks have come:
/// then rank 0 knows everything.
launch::Verdict run_job_checks(const JobCheckOptions& options, const launch::RankReport& own,
                               const std::function<void(const launch::Findings&)>& report, bool& has_met);

}  // namespace pharos::cli
