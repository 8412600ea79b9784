// What follows from the values given, in Megatron-Bridge's order: mixed precision, matching switches, defaults that
// depend on other fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/config/resolve.h"

namespace pharos::config {

/// Applies the derivations that need no world size. Idempotent. Conflicts become problems or warnings.
void derive(ResolvedConfig& resolved, std::vector<Problem>& problems);

/// Writes the decisions of section comm_overlap into model, ddp and optimizer, for this many ranks.
void apply_comm_overlap(ResolvedConfig& resolved, std::int64_t world_size);

/// Sentences about fields without effect: stored only, kernel hints, fields whose switch is off, and on one rank those
/// that act on several.
std::vector<std::string> effect_notes(const ResolvedConfig& resolved, std::int64_t world_size);

/// Names of the precision recipes, with underscores.
std::vector<std::string> precision_recipe_names();

}  // namespace pharos::config
