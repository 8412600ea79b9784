#include "pharos/cli/config_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/schema/schema.h"

namespace pharos::cli {
namespace {

using config::Field;
using config::Need;

std::string effect_text(const Field& field) {
  switch (field.need) {
    case Need::kEffective:
      return "acts";
    case Need::kOneRank:
      return "acts with several ranks; noted once on one rank";
    case Need::kHint:
      return "accepted; Pharos decides this itself, noted once";
    case Need::kStored:
      return "kept in run.yaml without effect, warned about once";
    case Need::kLater:
      return "needs " + field.capability + ": `pharos plan` accepts it, `pharos train` refuses";
  }
  return "";
}

nlohmann::json to_json(const Field& field) {
  nlohmann::json json = {{"name", field.name},         {"section", field.section},
                         {"type", field.type},         {"default", config::to_flow_text(field.default_value)},
                         {"doc", field.doc},           {"compatibility", config::need_text(field.need)},
                         {"required", field.required}, {"own", field.own}};
  if (!field.unit.empty()) json["unit"] = field.unit;
  if (!field.range_text().empty()) json["range"] = field.range_text();
  if (!field.choices.empty()) json["choices"] = field.choices;
  if (!field.capability.empty()) json["capability"] = field.capability;
  if (!field.active_with.empty()) json["active_with"] = field.active_with;
  return json;
}

void print_fields(const std::string& section, bool as_json) {
  if (!section.empty() && !config::schema().is_section(section)) {
    const auto nearest = base::nearest_names(section, config::schema().sections());
    throw base::UserError({.what = "There is no section " + section + ".",
                           .fix = nearest.empty()
                                      ? "Sections are " + base::join(config::schema().sections(), ", ") + "."
                                      : "Did you mean " + base::join(nearest, ", ") + "?"});
  }
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& name : config::schema().sections()) {
    if (!section.empty() && name != section) continue;
    for (const Field& field : config::schema().fields()) {
      if (field.section != name) continue;
      if (as_json) {
        list.push_back(to_json(field));
        continue;
      }
      std::string line = field.name;
      line.resize(std::max<std::size_t>(line.size() + 1, 52), ' ');
      line += field.type + " = " + (field.required ? "required" : config::to_flow_text(field.default_value));
      if (field.need != Need::kEffective) line += "  [" + config::need_text(field.need) + "]";
      std::cout << line << "\n";
    }
  }
  if (as_json) std::cout << list.dump(2) << "\n";
}

void explain(const std::string& name) {
  const std::string canonical = config::canonical_name(name);
  const Field* field = config::schema().find(canonical);
  if (field == nullptr) {
    const std::string hint = config::nearest_hint(canonical);
    throw base::UserError(
        {.what = "There is no field " + name + ".", .fix = hint.empty() ? "`pharos config fields` lists all." : hint});
  }
  std::cout << field->name << "\n  " << field->doc << "\n";
  std::cout << "  type:    " << field->type << (field->required ? " (required)" : "") << "\n";
  std::cout << "  default: " << config::to_flow_text(field->default_value) << "\n";
  if (!field->range_text().empty()) std::cout << "  range:   " << field->range_text() << "\n";
  if (!field->unit.empty()) std::cout << "  unit:    " << field->unit << "\n";
  std::cout << "  effect:  " << effect_text(*field) << "\n";
  if (!field->active_with.empty()) std::cout << "  with:    acts only when " << field->active_with << " is set\n";
  std::cout << "  source:  " << (field->own ? "Pharos" : "Megatron-Bridge") << "\n";
}

}  // namespace

void add_config_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "What can be configured");
  command->require_subcommand(1);

  struct FieldsOptions {
    std::string section;
    bool as_json = false;
  };
  auto options = std::make_shared<FieldsOptions>();
  CLI::App* fields = command->add_subcommand("fields", "List all fields with type, default and compatibility");
  fields->add_option("--section", options->section, "Only this section");
  fields->add_flag("--json", options->as_json, "As JSON, with documentation");
  fields->callback([options] { print_fields(options->section, options->as_json); });

  auto name = std::make_shared<std::string>();
  CLI::App* explain_command = command->add_subcommand("explain", "Explain one field");
  explain_command->add_option("field", *name, "Dotted name, for example train.train_iters")->required();
  explain_command->callback([name] { explain(*name); });
}

}  // namespace pharos::cli
