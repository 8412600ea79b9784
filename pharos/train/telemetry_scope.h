// Telemetry of a training process: from its configuration to the end of the run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pharos/config/resolve.h"
#include "pharos/train/parallel.h"
#include "pharos/train/run_folder.h"
#include "pharos/train/train.h"

namespace pharos::train {

/// Telemetry for the life of this object. The ring alone is on by default: after a crash it holds the last spans.
class TelemetryScope {
 public:
  /// Every rank calls it. UserError where variables, flags or configuration cannot be obeyed. `known_run_id`: of rank 0
  /// counts: the id that the run had before; only one that is configured comes before it.
  TelemetryScope(const config::ResolvedConfig& resolved, const TrainOptions& options, const RunFolder& folder,
                 const Parallel& parallel, const std::optional<std::string>& known_run_id);
  ~TelemetryScope();
  TelemetryScope(const TelemetryScope&) = delete;
  TelemetryScope& operator=(const TelemetryScope&) = delete;

  /// The same on all ranks.
  const std::string& run_id() const { return run_id_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

  /// The run was refused before its first step: its ring must not push the last run's aside.
  void discard();

 private:
  std::vector<std::string> warnings_;
  std::string run_id_;
};

}  // namespace pharos::train
