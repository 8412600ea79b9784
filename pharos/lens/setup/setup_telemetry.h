// From configuration and environment to running telemetry: what nemo-lens's setup_telemetry does (lens.md section 2.2),
// in an order in which an error strikes all ranks alike and before anything is changed.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/lens/exporter.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/setup/resource.h"
#include "pharos/lens/setup/settings.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

struct SetupInput {
  int rank = 0;
  int world_size = 1;
  std::optional<RankCoordinates> coordinates = {};
  StoredAttributes resource_attributes = {};  ///< for example megatron.num_layers
  bool has_training_keys = true;              ///< ResourceInput
  std::string shared_run_id = {};             ///< one that all ranks know
  std::filesystem::path run_folder = {};      ///< of ring and lines
  bool keeps_ring = false;                    ///< record into a ring file even where nothing is exported
  bool handles_signals = false;
  std::vector<std::shared_ptr<Exporter>> exporters = {};  ///< beside what the configuration says, on exporting ranks
};

struct SetupResult {
  Telemetry* telemetry = nullptr;  ///< null: telemetry is off, nothing in the process was touched
  bool is_exporting = false;       ///< this rank's spans leave the process
  std::string run_id;
  std::vector<std::string> warnings;  ///< those of the settings first; the same on all ranks but for the strategy's
};

/// Reads OTEL_EXPORTER_OTLP_* from the process, asks the export strategy, then starts telemetry: on an exporting rank
/// with the configured exporter, elsewhere, and when disabled, only if `keeps_ring`, with the ring alone. `settings`
/// are load_settings() of the same environment. UserError for anything that cannot be obeyed, on every rank alike.
SetupResult setup_telemetry(const LensSettings& settings, const SetupInput& input, const Environment& environment);

}  // namespace pharos::lens
