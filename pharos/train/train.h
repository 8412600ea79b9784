// `train`: one run from set-up to exit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "pharos/base/error.h"
#include "pharos/comm/rank_environment.h"
#include "pharos/config/resolve.h"
#include "pharos/lens/setup/settings.h"

namespace pharos::train {

struct TrainOptions {
  std::filesystem::path run_folder;  ///< that of rank 0 counts
  bool resume = false;
  comm::RankEnvironment ranks = {};
  lens::LensFlags telemetry = {};
  std::function<void()> check_resources = {};  ///< called on the first rank of each node; UserError: the run cannot fit
  std::int64_t main_entry_ns = 0;              ///< monotonic; when main() began
  std::int64_t config_ready_ns = 0;            ///< monotonic; when the configuration was resolved and valid
};

/// Trains by `resolved` (validated for options.ranks.world_size ranks, Purpose::kTrain) in `options.run_folder`; every
/// rank of the job calls it.
/// Returns kDone, or kInterrupted when the run stopped early and saved. Throws base::UserError for faults of input and
/// environment, base::TrainingError when the run itself fails (also when a peer is lost); the last good checkpoint
/// stays intact in every case.
base::ExitCode train(const config::ResolvedConfig& resolved, const TrainOptions& options);

}  // namespace pharos::train
