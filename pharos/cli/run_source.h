// What several sub-commands need to turn their arguments into a configuration.
#pragma once

#include <cstdint>

#include "pharos/config/resolve.h"

namespace pharos::cli {

/// CLOCK_MONOTONIC when the command line began to be read.
std::int64_t main_entry_ns();
void set_main_entry_ns(std::int64_t monotonic_ns);

/// Fills what recipes leave to other files: geometry from the config.json of model.hf_path, the vocabulary from the
/// tokenizer (bridge-config.md 1.15). For config::prepare().
void complete_config(config::ResolvedConfig& resolved);

/// The fewest ranks the configuration runs on. Its problems are left to the reading that knows the number of ranks.
std::int64_t smallest_world_size(const config::ResolveRequest& request);

}  // namespace pharos::cli
