#include "pharos/launch/environment/environment_plan.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/launch/environment/environment_warnings.h"
#include "pharos/launch/environment/profile_variables.h"
#include "pharos/launch/environment/recipe_variables.h"

namespace pharos::launch {
namespace {

constexpr std::array<std::string_view, 3> kProfileNames = {"efa", "ib", "tcp"};

/// Variables that change how ranks talk to each other whoever set them.
constexpr std::string_view kWatchedPrefixes[] = {"NCCL_",       "OFI_NCCL_", "FI_",
                                                 "TORCH_NCCL_", "GLOO_",     "CUDA_LAUNCH_BLOCKING"};

PlannedVariable* find(std::vector<PlannedVariable>& variables, const std::string& name) {
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [&](const PlannedVariable& variable) { return variable.name == name; });
  return found == variables.end() ? nullptr : &*found;
}

/// `variable` wins over what is planned under its name.
void set(std::vector<PlannedVariable>& variables, PlannedVariable variable) {
  PlannedVariable* planned = find(variables, variable.name);
  if (planned == nullptr) {
    variables.push_back(std::move(variable));
    return;
  }
  variable.overruled = std::move(planned->overruled);
  if (planned->value != variable.value)
    variable.overruled.push_back(planned->origin + ": " + planned->name + "=" + planned->value);
  *planned = std::move(variable);
}

/// `text` as the inside of a shell's double-quoted word that stands for exactly these characters.
std::string literal_word(std::string_view text) {
  std::string word;
  for (const char character : text) {
    if (character == '\\' || character == '"' || character == '$' || character == '`') word += '\\';
    word += character;
  }
  return word;
}

bool has_folder(std::string_view list, std::string_view folder) {
  std::istringstream entries{std::string(list)};
  for (std::string entry; std::getline(entries, entry, ':');) {
    if (entry == folder || entry == std::string(folder) + "/") return true;
  }
  return false;
}

void set_user_variables(std::vector<PlannedVariable>& variables, const lens::Environment& user) {
  const auto set_user = [&](const std::string& name, const std::string& value, std::string reason) {
    set(variables, {.name = name,
                    .value = value,
                    .reason = std::move(reason),
                    .source = VariableSource::kUser,
                    .origin = "environment"});
  };
  for (const PlannedVariable& planned : std::vector<PlannedVariable>(variables)) {
    const auto value = user.get(planned.name);
    if (!value) continue;
    const bool is_list = planned.name == "LD_LIBRARY_PATH" && planned.source == VariableSource::kProfile;
    if (is_list && !has_folder(*value, kEfaLibraryFolder)) {
      find(variables, planned.name)->origin += ", before what the environment has";
    } else {
      set_user(planned.name, *value, planned.reason);
    }
  }
  for (const std::string_view prefix : kWatchedPrefixes) {
    for (const std::string& name : user.names_starting_with(prefix)) {
      if (find(variables, name) == nullptr) set_user(name, *user.get(name), "Set by the user alone.");
    }
  }
}

std::string env_vars_origin(const config::ResolvedConfig& resolved, const std::string& name) {
  const auto found = resolved.origins.find("env_vars." + name);
  return found != resolved.origins.end() ? found->second.text : resolved.origin_of("env_vars").text;
}

}  // namespace

std::string_view name_of(NetworkProfile profile) { return kProfileNames.at(static_cast<std::size_t>(profile)); }

NetworkProfile parse_network_profile(const std::string& name) {
  const auto found = std::find(kProfileNames.begin(), kProfileNames.end(), name);
  if (found != kProfileNames.end()) return static_cast<NetworkProfile>(found - kProfileNames.begin());
  throw base::UserError({.what = "There is no network profile '" + name + "'.",
                         .where = "--profile",
                         .why = "There are efa, ib and tcp.",
                         .fix = "Name one of them, or leave --profile out to take that of this machine's devices."});
}

bool is_set_for_ranks(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PHAROS_TIME_LIMIT_END"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool is_shell_name(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

EnvironmentPlan plan_environment(const config::ResolvedConfig& resolved, NetworkProfile profile,
                                 const lens::Environment& user, const NodeShape& node) {
  const bool uses_gpus = resolved.config.dist.device == config::DeviceKind::kCuda;
  NodeShape known = node;
  if (known.gpu.empty()) known.gpu = gpu_of_recipe(resolved);
  EnvironmentPlan plan{.profile = profile, .variables = profile_variables(profile, uses_gpus), .warnings = {}};
  if (uses_gpus && !resolved.origins.empty()) {
    for (PlannedVariable& variable : recipe_variables(resolved, known)) set(plan.variables, std::move(variable));
    plan.unused = unused_variables(resolved, known);
  }
  for (const auto& [name, value] : resolved.config.env_vars) {
    if (is_set_for_ranks(name)) {
      throw base::UserError(
          {.what = "env_vars." + name + " = " + value + " cannot be set.",
           .where = env_vars_origin(resolved, name),
           .why = "The launcher gives each rank its own " + name + "; ranks would not find each other.",
           .fix = name == "MASTER_PORT" ? "Leave it out; MASTER_PORT=… before the command chooses a port."
                                        : "Leave it out."});
    }
    set(plan.variables, {.name = name,
                         .value = value,
                         .reason = "env_vars of the recipe",
                         .source = VariableSource::kRecipe,
                         .origin = env_vars_origin(resolved, name)});
    std::erase_if(plan.unused, [&](const PlannedVariable& variable) { return variable.name == name; });
  }
  set_user_variables(plan.variables, user);
  plan.warnings = environment_warnings(plan, resolved, known);
  return plan;
}

std::string export_line(const PlannedVariable& variable) {
  const bool is_word = variable.source == VariableSource::kProfile;
  return "export " + variable.name + "=\"" + (is_word ? variable.value : literal_word(variable.value)) + "\"\n";
}

std::string export_lines(const EnvironmentPlan& plan) {
  std::string lines;
  for (const PlannedVariable& variable : plan.variables) {
    if (variable.source != VariableSource::kUser && is_shell_name(variable.name)) lines += export_line(variable);
  }
  return lines;
}

}  // namespace pharos::launch
