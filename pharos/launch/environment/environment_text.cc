#include "pharos/launch/environment/environment_text.h"

#include "pharos/base/untrusted/printable.h"

namespace pharos::launch {
namespace {

using base::printable;

nlohmann::json to_json(const std::vector<PlannedVariable>& variables) {
  nlohmann::json list = nlohmann::json::array();
  for (const PlannedVariable& variable : variables) {
    list.push_back({{"name", variable.name},
                    {"value", variable.value},
                    {"source", name_of(variable.source)},
                    {"origin", variable.origin},
                    {"reason", variable.reason},
                    {"overruled", variable.overruled}});
  }
  return list;
}

}  // namespace

std::string_view name_of(VariableSource source) {
  switch (source) {
    case VariableSource::kProfile:
      return "profile";
    case VariableSource::kRecipe:
      return "recipe";
    case VariableSource::kUser:
      return "user";
  }
  return "";
}

std::string render(const EnvironmentPlan& plan) {
  std::string text;
  for (const PlannedVariable& variable : plan.variables) {
    text += printable(variable.name + "=" + variable.value) + "\n  " +
            printable(variable.origin + ": " + variable.reason) + "\n";
    for (const std::string& overruled : variable.overruled) text += "  instead of " + printable(overruled) + "\n";
  }
  if (!plan.unused.empty()) text += "\nNot exported:\n";
  for (const PlannedVariable& variable : plan.unused)
    text += printable(variable.name + "=" + variable.value) + "\n  " + printable(variable.reason) + "\n";
  if (!plan.warnings.empty()) text += "\n";
  for (const std::string& warning : plan.warnings) text += "warning: " + printable(warning) + "\n";
  return text;
}

nlohmann::json to_json(const EnvironmentPlan& plan) {
  return {{"profile", name_of(plan.profile)},
          {"variables", to_json(plan.variables)},
          {"unused", to_json(plan.unused)},
          {"warnings", plan.warnings}};
}

}  // namespace pharos::launch
