// From a recipe and a command line to a typed configuration in which every value knows where it came from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pharos/config/overrides/value.h"
#include "pharos/config/problem.h"
#include "pharos/config/run_config.h"

namespace pharos::config {

struct ResolveRequest {
  std::string recipe = {};                             ///< name or path; empty: defaults only
  std::vector<std::string> overrides = {};             ///< words of the command line, left to right
  std::map<std::string, std::string> parameters = {};  ///< recipe parameters; the command line wins over them
};

struct ResolvedConfig {
  RunConfig config;
  std::string recipe_name;
  std::filesystem::path recipe_path;
  std::map<std::string, Value> parameters;  ///< of the recipe, by name
  std::map<std::string, Origin> origins;    ///< of every field that is not at its untouched default
  std::vector<std::string> warnings;        ///< sentences to show once

  /// Where the value of `field` (dotted name) comes from.
  Origin origin_of(const std::string& field) const;
  /// Set by recipe, run file or command line, not by default or derivation.
  bool is_explicit(const std::string& field) const;
  /// "model.hidden_size = 64 (recipe tiny (tiny.yaml:3))".
  std::string describe(const std::string& field) const;
};

/// Reads the recipe, applies parameters and overrides, checks names and types and derives what follows (mixed
/// precision, matching switches, sequence length). Throws ConfigErrors with every problem found.
ResolvedConfig resolve(const ResolveRequest& request);

/// Sets a field by derivation, for example geometry read from a Hugging Face config.json. `reason` becomes the origin:
/// "derived: <reason>". Throws UserError when the field does not exist or the value does not fit.
void set_derived(ResolvedConfig& resolved, const std::string& field, const Value& value, const std::string& reason);

enum class Purpose { kTrain, kPlan };

/// resolve(), then `complete` (fills fields from outside, such as model.hf_path; may be empty), then derivation and
/// validate() for `world_size` ranks; throws all problems together. The way sub-commands get their configuration.
ResolvedConfig prepare(const ResolveRequest& request, std::int64_t world_size, Purpose purpose,
                       const std::function<void(ResolvedConfig&)>& complete = {});

/// Sets config.env_vars in the environment of this process, except variables that are already set.
void export_environment(const RunConfig& config);

}  // namespace pharos::config
