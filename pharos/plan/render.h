// A plan for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pharos/plan/plan.h"

namespace pharos::plan {

/// Aligned tables with units; `with_ranks` adds coordinates of ranks and groups.
std::string render(const Plan& plan, bool with_ranks);

/// Keys are documented in docs/plan.md. Sizes are bytes or counts.
nlohmann::json to_json(const Plan& plan, bool with_ranks);

}  // namespace pharos::plan
