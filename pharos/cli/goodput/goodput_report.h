// Goodput of runs as a table for people and as JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pharos/train/attempts/goodput.h"

namespace pharos::cli {

struct RunGoodput {
  std::filesystem::path folder;
  train::GoodputReport report;
};

/// Table of attempts, then the time by kind, then the two shares. With several runs, a last part over all of them.
std::string render_goodput(const std::vector<RunGoodput>& runs);

/// {"runs": [{"folder", "run_id", "node_failures", "attempts": […], "totals": {…}}], "totals": {…}}; seconds, fractions
/// 0 … 1, times in seconds since 1970.
nlohmann::json goodput_json(const std::vector<RunGoodput>& runs);

}  // namespace pharos::cli
