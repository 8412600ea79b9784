#include "pharos/config/recipe/recipe.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/recipe/yaml_reader.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

constexpr std::size_t kMaxChain = 16;

const char* type_of_value(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInteger:
      return "int";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "str";
    default:
      return "any";
  }
}

/// Reads the parts of one recipe file; every fault becomes a problem with its line.
class RecipeReader {
 public:
  RecipeReader(Recipe& recipe, std::vector<Problem>& problems) : recipe_(recipe), problems_(problems) {}

  void read(const Value& root) {
    if (!root.is_map()) return fail(root, "A recipe is a mapping, but this file is " + kind_text(root) + ".", kShape);
    for (const auto& [key, value] : root.map) {
      if (key == "description") {
        recipe_.description = read_text(key, value);
      } else if (key == "base") {
        recipe_.base = read_text(key, value);
        recipe_.base_origin = value.origin;
      } else if (key == "parameters") {
        read_parameters(value);
      } else if (key == "config") {
        if (!value.is_null()) recipe_.config = value;
      } else if (key == "when") {
        read_blocks(value);
      } else if (key == "resolved_parameters" && value.is_map()) {
        for (const auto& [name, parameter] : value.map) recipe_.resolved_parameters[name] = parameter;
      } else {
        refuse_key(key, value);
      }
    }
  }

 private:
  static constexpr const char* kShape = "A recipe has the keys description, base, parameters, config, when.";

  void fail(const Value& value, const std::string& message, const std::string& remedy) {
    problems_.push_back({"recipe", message, value.origin.text, remedy});
  }

  void refuse_key(const std::string& key, const Value& value) {
    const bool belongs_inside = schema().is_section(key) || schema().find(canonical_name(key)) != nullptr;
    fail(value, "A recipe has no key " + key + ".", belongs_inside ? "Move it below `config:`." : kShape);
  }

  std::string read_text(const std::string& key, const Value& value) {
    if (value.is_string()) return value.text;
    fail(value, key + " = " + to_flow_text(value) + " is not text.", "Write " + key + ": NAME.");
    return "";
  }

  void read_parameters(const Value& value) {
    if (value.is_null()) return;
    if (!value.is_map())
      return fail(value, "parameters is " + kind_text(value) + ", not a mapping.", "Write name: default.");
    for (const auto& [name, declaration] : value.map) {
      if (schema().is_section(name) || name.find('.') != std::string::npos) {
        fail(declaration, "Parameter " + name + " has the name of a section or a dot in it.", "Choose another name.");
        continue;
      }
      RecipeParameter parameter;
      parameter.name = name;
      if (declaration.is_map()) {
        read_declaration(declaration, parameter);
      } else {
        parameter.default_value = declaration;
        parameter.type = type_of_value(declaration);
      }
      recipe_.parameters.push_back(std::move(parameter));
    }
  }

  void read_declaration(const Value& declaration, RecipeParameter& parameter) {
    parameter.default_value.origin = declaration.origin;
    std::string type;
    for (const auto& [key, value] : declaration.map) {
      if (key == "default") {
        parameter.default_value = value;
      } else if (key == "doc") {
        parameter.doc = read_text("doc", value);
      } else if (key == "type") {
        type = read_text("type", value);
      } else if (key == "required" && value.kind == Value::Kind::kBool) {
        parameter.required = value.boolean;
      } else if (key == "choices" && value.is_list() && !value.list.empty()) {
        parameter.choices = value.list;
      } else {
        fail(value, "Parameter " + parameter.name + " has no attribute " + key + ".",
             "Attributes are default, doc, type, choices (a list), required (true or false).");
      }
    }
    static const std::vector<std::string> kTypes = {"any", "str", "int", "float", "bool"};
    if (!type.empty() && std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end()) {
      fail(declaration, "Parameter " + parameter.name + " has type " + type + ", which is none.",
           "Use any, str, int, float or bool.");
      type.clear();
    }
    parameter.type = type.empty() ? type_of_value(parameter.default_value) : type;
  }

  void read_blocks(const Value& value) {
    if (value.is_null()) return;
    if (!value.is_list())
      return fail(value, "when is " + kind_text(value) + ", not a list.",
                  "Write - if: {parameter: value} and config:.");
    for (const Value& element : value.list) {
      const Value* condition = element.find("if");
      const Value* config = element.find("config");
      if (!element.is_map() || condition == nullptr || config == nullptr || !condition->is_map() ||
          element.map.size() != 2) {
        fail(element, "A block of when needs exactly `if:` (a mapping of parameters) and `config:`.",
             "Write - if: {parameter: value} and config:.");
        continue;
      }
      RecipeBlock block;
      for (const auto& [parameter, test] : condition->map) block.conditions.push_back(read_condition(parameter, test));
      block.config = *config;
      recipe_.when.push_back(std::move(block));
    }
  }

  RecipeCondition read_condition(const std::string& parameter, const Value& test) {
    RecipeCondition condition;
    condition.parameter = parameter;
    const auto values_of = [](const Value& value) { return value.is_list() ? value.list : std::vector<Value>{value}; };
    if (!test.is_map()) {
      condition.any_of = values_of(test);
      return condition;
    }
    for (const auto& [key, value] : test.map) {
      if (key == "set" && value.kind == Value::Kind::kBool) {
        condition.is_set = value.boolean;
      } else if (key == "not") {
        condition.none_of = values_of(value);
      } else {
        fail(value, "A condition on " + parameter + " cannot be {" + key + ": " + to_flow_text(value) + "}.",
             "Write a value, a list of values, {set: true}, {set: false} or {not: value}.");
      }
    }
    return condition;
  }

  Recipe& recipe_;
  std::vector<Problem>& problems_;
};

}  // namespace

Recipe parse_recipe(std::string_view text, const std::filesystem::path& path, std::vector<Problem>& problems) {
  Recipe recipe;
  recipe.path = path;
  recipe.name = path.stem().string();
  const bool is_run_file = path.filename() == "run.yaml";
  const Value root = read_yaml(text, path.string(), is_run_file ? Origin::Kind::kRunFile : Origin::Kind::kRecipe,
                               is_run_file ? "run file" : "recipe " + recipe.name);
  RecipeReader(recipe, problems).read(root);
  return recipe;
}

Recipe read_recipe(const std::filesystem::path& path, std::vector<Problem>& problems) {
  const std::string text = base::read_file(path);
  check_is_whole(text, path);
  return parse_recipe(text, path, problems);
}

std::vector<Recipe> load_recipe_chain(const std::string& name, std::vector<Problem>& problems) {
  std::vector<Recipe> chain;
  std::vector<std::filesystem::path> seen;
  std::string next = name;
  std::filesystem::path beside;
  Origin asked_by{Origin::Kind::kCommandLine, "command line"};
  while (!next.empty()) {
    std::filesystem::path path;
    try {
      path = find_recipe(next, beside);
    } catch (const base::UserError& error) {
      if (chain.empty()) throw;
      problems.push_back({"recipe", error.parts().what, asked_by.text, error.parts().fix});
      break;
    }
    std::error_code ignored;
    const auto canonical = std::filesystem::weakly_canonical(path, ignored);
    if (std::find(seen.begin(), seen.end(), canonical) != seen.end() || chain.size() >= kMaxChain) {
      std::vector<std::string> names;
      for (const Recipe& recipe : chain) names.push_back(recipe.name);
      problems.push_back(
          {"recipe", "The bases of recipe " + name + " form a cycle: " + base::join(names, " → ") + " → " + next + ".",
           asked_by.text, "Remove one `base:` of the cycle."});
      break;
    }
    seen.push_back(canonical);
    chain.push_back(read_recipe(path, problems));
    next = chain.back().base;
    asked_by = chain.back().base_origin;
    beside = path.parent_path().empty() ? std::filesystem::path(".") : path.parent_path();
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

bool block_applies(const RecipeBlock& block, const std::map<std::string, Value>& parameters) {
  return std::all_of(block.conditions.begin(), block.conditions.end(), [&](const RecipeCondition& condition) {
    const auto found = parameters.find(condition.parameter);
    const Value value = found == parameters.end() ? Value::null() : found->second;
    const auto equal = [&](const Value& other) { return other == value; };
    if (condition.is_set && *condition.is_set == value.is_null()) return false;
    if (!condition.any_of.empty() && std::none_of(condition.any_of.begin(), condition.any_of.end(), equal))
      return false;
    return std::none_of(condition.none_of.begin(), condition.none_of.end(), equal);
  });
}

}  // namespace pharos::config
