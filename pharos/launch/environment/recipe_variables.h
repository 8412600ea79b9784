// What follows from a configuration for the environment of its ranks (bridge-config.md 10.2).
#pragma once

#include <string>
#include <vector>

#include "pharos/config/resolve.h"
#include "pharos/launch/environment/environment_plan.h"

namespace pharos::launch {

/// GPU that a recipe is written for, by its name or that of a base: "h100" of llama3_8b_pretrain_2gpu_h100_bf16; empty
/// when none says so.
std::string gpu_of_recipe(const config::ResolvedConfig& resolved);

/// Variables by rule, `node.gpu` being the GPU or empty (then as Hopper). `origin` of each is "rule". UserError:
/// HybridEP with more expert ranks than an NVLink domain has GPUs.
std::vector<PlannedVariable> recipe_variables(const config::ResolvedConfig& resolved, const NodeShape& node);

/// Variables by rule which only a library reads that Pharos does not use; `reason` names it.
std::vector<PlannedVariable> unused_variables(const config::ResolvedConfig& resolved, const NodeShape& node);

/// The library that alone reads `name` and is not in Pharos, or empty.
std::string unused_reader(const std::string& name);

}  // namespace pharos::launch
