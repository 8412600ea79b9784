#include "pharos/config/resolve.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/lifecycle.h"
#include "pharos/config/overrides/assignment.h"
#include "pharos/config/overrides/interpolation.h"
#include "pharos/config/overrides/override_parser.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/config/schema/schema.h"
#include "pharos/config/validate/validate.h"

namespace pharos::config {
namespace {

Problem to_problem(const std::string& field, const base::UserError& error) {
  const auto* several = dynamic_cast<const ConfigErrors*>(&error);
  if (several != nullptr && !several->problems().empty()) return several->problems().front();
  const auto& parts = error.parts();
  return {field, parts.why.empty() ? parts.what : parts.what + " " + parts.why, parts.where, parts.fix};
}

/// The value of a parameter as its declared type, or the rule it breaks.
ConversionFault convert_parameter(const std::string& type, Value& value) {
  if (type == "any" || value.is_null()) return std::nullopt;
  const Origin origin = value.origin;
  ConversionFault fault;
  if (type == "str") {
    std::string text;
    fault = convert(value, text);
    value = Value::of_string(text);
  } else if (type == "int") {
    std::int64_t integer = 0;
    fault = convert(value, integer);
    value = Value::of_integer(integer);
  } else if (type == "float") {
    double number = 0;
    fault = convert(value, number);
    value = Value::of_float(number);
  } else {
    bool boolean = false;
    fault = convert(value, boolean);
    value = Value::of_bool(boolean);
  }
  value.origin = origin;
  return fault;
}

class Resolver {
 public:
  Resolver(const ResolveRequest& request, ResolvedConfig& resolved, std::vector<Problem>& problems)
      : request_(request), resolved_(resolved), problems_(problems) {}

  void run() {
    load_recipes();
    parse_overrides();
    resolve_parameters();
    for (const Recipe& recipe : chain_) apply_recipe(recipe);
    for (const Override& override : overrides_) assignments_.apply(override, problems_);
    write_fields();
    for (const std::string& note : assignments_.notes()) resolved_.warnings.push_back(note);
  }

 private:
  void load_recipes() {
    if (request_.recipe.empty()) return;
    try {
      chain_ = load_recipe_chain(request_.recipe, problems_);
    } catch (const base::UserError& error) {
      problems_.push_back(to_problem("recipe", error));
    }
    for (const Recipe& recipe : chain_) {
      for (const RecipeParameter& parameter : recipe.parameters) declare(parameter);
      for (const auto& [name, value] : recipe.resolved_parameters) resolved_.parameters[name] = value;
    }
    if (chain_.empty()) {
      throw_if_any(problems_);  // without the recipe nothing else can be judged
      return;
    }
    resolved_.recipe_name = chain_.back().name;
    resolved_.recipe_path = chain_.back().path;
  }

  /// A later declaration of the same name changes default and keeps what it does not say.
  void declare(const RecipeParameter& parameter) {
    const auto found = declared_.find(parameter.name);
    if (found == declared_.end()) {
      declared_.emplace(parameter.name, parameter);
      return;
    }
    RecipeParameter merged = parameter;
    if (merged.doc.empty()) merged.doc = found->second.doc;
    if (merged.choices.empty()) merged.choices = found->second.choices;
    if (found->second.type != "any") merged.type = found->second.type;
    found->second = merged;
  }

  void parse_overrides() {
    for (const std::string& text : request_.overrides) {
      try {
        Override override = parse_override(text);
        const bool is_parameter = override.path.size() == 1 && declared_.contains(override.path.front()) &&
                                  override.operation != Override::Operation::kDelete;
        if (is_parameter) {
          given_[override.path.front()] = *override.value;
        } else if (!refuse_unknown_word(override)) {
          overrides_.push_back(std::move(override));
        }
      } catch (const base::UserError& error) {
        problems_.push_back(to_problem("override", error));
      }
    }
    for (const auto& [name, text] : request_.parameters) {
      if (!declared_.contains(name)) {
        std::vector<std::string> known;
        for (const auto& entry : declared_) known.push_back(entry.first);
        problems_.push_back({name, "Recipe " + request_.recipe + " has no parameter " + name + ".", "command line",
                             known.empty() ? "It has none." : "It has " + base::join(known, ", ") + "."});
        continue;
      }
      Value value = classify_word(text);
      value.origin = {Origin::Kind::kCommandLine, "command line"};
      given_.try_emplace(name, std::move(value));
    }
  }

  /// A word without dot that names no section was meant as a parameter of the recipe.
  bool refuse_unknown_word(const Override& override) {
    const std::string& name = override.path.front();
    if (override.path.size() > 1 || schema().is_section(name)) return false;
    std::vector<std::string> parameters;
    for (const auto& entry : declared_) parameters.push_back(entry.first);
    std::vector<std::string> known = parameters;
    known.insert(known.end(), schema().sections().begin(), schema().sections().end());
    const auto nearest = base::nearest_names(name, known);
    std::string remedy = nearest.empty() ? "Fields are set with section.field=value."
                                         : "Did you mean " + base::join(nearest, ", ") + "?";
    if (!parameters.empty()) remedy += " The recipe's parameters are " + base::join(parameters, ", ") + ".";
    problems_.push_back({name, name + " is neither a section nor a parameter of the recipe.", "command line", remedy});
    return true;
  }

  void resolve_parameters() {
    std::map<std::string, Value> raw = resolved_.parameters;
    for (const auto& [name, parameter] : declared_) {
      const auto given = given_.find(name);
      raw[name] = given == given_.end() ? parameter.default_value : given->second;
    }
    for (const auto& [name, parameter] : declared_) {
      Value value = interpolate(name, raw[name], raw, assignments_, problems_);
      if (parameter.required && value.is_null()) {
        problems_.push_back(
            {name, "Parameter " + name + " of recipe " + resolved_.recipe_name + " has no value.",
             parameter.default_value.origin.text,
             "Give it: " + name + "=VALUE" + (parameter.doc.empty() ? "." : " (" + parameter.doc + ").")});
      }
      if (auto fault = convert_parameter(parameter.type, value)) {
        problems_.push_back({name, "Parameter " + name + " = " + to_message_text(raw[name]) + " " + *fault + ".",
                             raw[name].origin.text, "Its type is " + parameter.type + "."});
        continue;
      }
      refuse_other_choice(parameter, value);
      resolved_.parameters[name] = std::move(value);
    }
  }

  void refuse_other_choice(const RecipeParameter& parameter, const Value& value) {
    const auto& choices = parameter.choices;
    if (choices.empty() || value.is_null() || std::find(choices.begin(), choices.end(), value) != choices.end()) return;
    std::vector<std::string> words;
    for (const Value& choice : choices) words.push_back(to_message_text(choice));
    problems_.push_back(
        {parameter.name,
         "Parameter " + parameter.name + " = " + to_message_text(value) + " is not a choice of recipe " +
             resolved_.recipe_name + ".",
         value.origin.text,
         "Use " + base::join(words, ", ") + (parameter.doc.empty() ? "." : " (" + parameter.doc + ").")});
  }

  void apply_recipe(const Recipe& recipe) {
    assignments_.merge(recipe.config, problems_);
    for (const RecipeBlock& block : recipe.when) {
      for (const RecipeCondition& condition : block.conditions) {
        if (declared_.contains(condition.parameter)) continue;
        problems_.push_back({"recipe",
                             "A block of when asks for parameter " + condition.parameter + ", which is not declared.",
                             block.config.origin.text, "Declare it below `parameters:`."});
      }
      if (block_applies(block, resolved_.parameters)) assignments_.merge(block.config, problems_);
    }
  }

  void write_fields() {
    for (const auto& [name, raw] : assignments_.values()) {
      const std::size_t problems_before = problems_.size();
      const Value value = interpolate(name, raw, resolved_.parameters, assignments_, problems_);
      if (problems_.size() != problems_before) continue;
      const Field& field = *schema().find(name);
      if (auto fault = field.write(resolved_.config, value)) {
        problems_.push_back(
            {name, name + " = " + to_message_text(value) + " " + *fault + ".", value.origin.text, remedy(field)});
        continue;
      }
      resolved_.origins[name] = value.origin;
      for (const auto& [key, entry] : value.map) resolved_.origins[name + "." + key] = entry.origin;
      if (field.section == "mixed_precision") resolved_.config.mixed_precision.given = true;
      if (field.section == "comm_overlap") resolved_.config.comm_overlap.given = true;
    }
  }

  static std::string remedy(const Field& field) {
    std::string text = "Its type is " + field.type;
    if (!field.nullable() && field.type == "choice") text = "It is a choice";
    if (const std::string range = field.range_text(); !range.empty()) text += ", " + range;
    return text + "; the default is " + to_flow_text(field.default_value) + ".";
  }

  const ResolveRequest& request_;
  ResolvedConfig& resolved_;
  std::vector<Problem>& problems_;
  std::vector<Recipe> chain_;
  std::map<std::string, RecipeParameter> declared_;
  std::map<std::string, Value> given_;
  std::vector<Override> overrides_;
  Assignments assignments_;
};

/// Checks of fields that could not be read would only repeat the fault.
void add_new_problems(const std::vector<Problem>& found, std::vector<Problem>& problems) {
  std::set<std::string> failed;
  for (const Problem& problem : problems) {
    if (schema().find(problem.field) != nullptr) failed.insert(problem.field);
  }
  for (const Problem& problem : found) {
    const bool repeats = std::any_of(failed.begin(), failed.end(), [&](const std::string& field) {
      return problem.field == field || problem.message.find(field) != std::string::npos;
    });
    if (!repeats) problems.push_back(problem);
  }
}

}  // namespace

Origin ResolvedConfig::origin_of(const std::string& field) const {
  const auto found = origins.find(field);
  return found == origins.end() ? Origin{} : found->second;
}

bool ResolvedConfig::is_explicit(const std::string& field) const {
  const Origin::Kind kind = origin_of(field).kind;
  return kind != Origin::Kind::kDefault && kind != Origin::Kind::kDerived;
}

std::string ResolvedConfig::describe(const std::string& field) const {
  const Field* declared = schema().find(field);
  PHAROS_CHECK(declared != nullptr, "no field " + field);
  return field + " = " + to_message_text(declared->read(config)) + " (" + origin_of(field).text + ")";
}

ResolvedConfig resolve(const ResolveRequest& request) {
  ResolvedConfig resolved;
  std::vector<Problem> problems;
  Resolver(request, resolved, problems).run();
  std::vector<Problem> derived;
  derive(resolved, derived);
  add_new_problems(derived, problems);
  throw_if_any(problems);
  return resolved;
}

void set_derived(ResolvedConfig& resolved, const std::string& field, const Value& value, const std::string& reason) {
  const Field* declared = schema().find(field);
  if (declared == nullptr) throw base::UserError({.what = "There is no field " + field + ".", .where = reason});
  if (auto fault = declared->write(resolved.config, value)) {
    throw base::UserError({.what = field + " = " + to_message_text(value) + " " + *fault + ".", .where = reason});
  }
  resolved.origins[field] = {Origin::Kind::kDerived, "derived: " + reason};
}

ResolvedConfig prepare(const ResolveRequest& request, std::int64_t world_size, Purpose purpose,
                       const std::function<void(ResolvedConfig&)>& complete) {
  ResolvedConfig resolved;
  std::vector<Problem> problems, found;
  Resolver(request, resolved, problems).run();
  bool is_complete = true;
  if (complete) {
    try {
      complete(resolved);
    } catch (const base::UserError& error) {
      problems.push_back(to_problem("model.hf_path", error));
      is_complete = false;
    }
  }
  derive(resolved, found);
  apply_comm_overlap(resolved, world_size);
  if (is_complete) {
    const auto broken = validate(resolved, world_size, purpose);
    found.insert(found.end(), broken.begin(), broken.end());
  }
  add_new_problems(found, problems);
  throw_if_any(problems);
  for (std::string& note : effect_notes(resolved, world_size)) resolved.warnings.push_back(std::move(note));
  return resolved;
}

void export_environment(const RunConfig& config) {
  for (const auto& [name, value] : config.env_vars) ::setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace pharos::config
