// `train`: one run from set-up to exit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "pharos/base/error.h"
#include "pharos/config/resolve.h"
#include "pharos/lens/setup/settings.h"

namespace pharos::train {

struct TrainOptions {
  std::filesystem::path run_folder;
  bool resume = false;
  lens::LensFlags telemetry = {};
  std::int64_t main_entry_ns = 0;    ///< monotonic; when main() began
  std::int64_t config_ready_ns = 0;  ///< monotonic; when the configuration was resolved and valid
};

/// Trains by `resolved` (validated for one rank, Purpose::kTrain) in `options.run_folder`.
/// Returns kDone, or kInterrupted when the run stopped early and saved. Throws base::UserError for faults of input and
/// environment, base::TrainingError when the run itself fails; the last good checkpoint stays intact in every case.
base::ExitCode train(const config::ResolvedConfig& resolved, const TrainOptions& options);

}  // namespace pharos::train
