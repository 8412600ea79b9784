#include "pharos/config/overrides/assignment.h"

#include <algorithm>

#include "pharos/base/text.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

constexpr std::size_t kMaxListIndex = 65536;
/// Nearest names are looked up for so many problems; a file full of unknown names is not misspelt.
constexpr std::size_t kMaxHints = 20;

/// How many leading parts of `path` name a field, counted before aliases; 0 when none do.
std::size_t field_parts_of(const std::vector<std::string>& path, std::string& field) {
  std::string name;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) name += '.';
    name += path[i];
    const std::string canonical = canonical_name(name);
    if (schema().find(canonical) != nullptr) {
      field = canonical;
      return i + 1;
    }
  }
  return 0;
}

/// A section Megatron-Bridge lets be null; null takes back what was set in it.
bool may_be_null(const std::string& section) {
  static const std::vector<std::string> kOptional = {
      "mixed_precision", "comm_overlap",   "peft",           "ft",
      "straggler",       "nvrx_straggler", "tensor_inspect", "inprocess_restart"};
  return std::find(kOptional.begin(), kOptional.end(), section) != kOptional.end();
}

bool is_index(const std::string& part) {
  return !part.empty() && part.size() <= 6 &&
         std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Problem unknown_name(const std::string& name, const std::string& origin, bool with_hint) {
  std::string hint = with_hint ? nearest_hint(canonical_name(name)) : "";
  if (hint.empty()) hint = "`pharos config fields` lists all fields.";
  return {name, "There is no field " + name + ".", origin, hint};
}

const Value* Assignments::find(const std::string& field) const {
  const auto found = values_.find(field);
  return found == values_.end() ? nullptr : &found->second;
}

Value Assignments::current(const std::string& field) const {
  if (const Value* set = find(field)) return *set;
  return schema().find(field)->default_value;
}

void Assignments::merge(const Value& config, std::vector<Problem>& problems) {
  if (!config.is_map()) {
    problems.push_back({"config", "A configuration is " + kind_text(config) + ", not a mapping of sections.",
                        config.origin.text, "Write `section:` and below it `field: value`."});
    return;
  }
  for (const auto& [name, value] : config.map) assign(name, value, problems, 0);
}

void Assignments::assign(const std::string& name, const Value& value, std::vector<Problem>& problems, int depth) {
  const std::string field_name = canonical_name(name);
  if (const Field* field = schema().find(field_name)) {
    if (name.starts_with("train.") && field_name != name) {
      notes_.push_back(name + " is deprecated; it was read as " + field_name + " (" + value.origin.text + ").");
    }
    const bool merges = value.is_map() && field->type.starts_with("mapping");
    Value result = value;
    if (merges) {
      result = current(field_name);
      for (const auto& [key, element] : value.map) {
        const auto same = [&key = key](const auto& entry) { return entry.first == key; };
        const auto old = std::find_if(result.map.begin(), result.map.end(), same);
        if (old == result.map.end()) {
          result.map.emplace_back(key, element);
        } else {
          old->second = element;
        }
      }
      result.origin = value.origin;
    }
    values_[field_name] = std::move(result);
  } else if (schema().is_section(field_name) || name == "model.transformer") {
    assign_section(name == "model.transformer" ? "model" : field_name, value, problems, depth);
  } else {
    problems.push_back(unknown_name(name, value.origin.text, problems.size() < kMaxHints));
  }
}

void Assignments::assign_section(const std::string& section, const Value& value, std::vector<Problem>& problems,
                                 int depth) {
  if (value.is_map() && depth < kMaxValueDepth) {
    for (const auto& [name, element] : value.map) {
      // `_target_` names the Python class of a Megatron-Bridge file; Pharos has one class a section.
      if (name != "_target_" && name != "_call_") assign(section + "." + name, element, problems, depth + 1);
    }
  } else if (section == "mixed_precision" && value.is_string()) {
    assign(section, Value::null(), problems, depth);
    values_["mixed_precision.name"] = value;
  } else if (value.is_null() && may_be_null(section)) {
    std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(section + "."); });
  } else if (!(value.is_null() && depth == 0 && value.origin.kind != Origin::Kind::kCommandLine)) {
    // In a file a section without content (`train:`) is merely empty.
    problems.push_back({section, "Section " + section + " cannot be " + to_message_text(value) + ".", value.origin.text,
                        "Give its fields: " + section + ".field=value."});
  }
}

void Assignments::apply(const Override& override, std::vector<Problem>& problems) {
  const std::string name = join_path(override.path);
  if (override.operation == Override::Operation::kDelete) return remove(override.path, override, problems);
  std::string field;
  const std::size_t parts = field_parts_of(override.path, field);
  if (parts == 0 || parts == override.path.size()) return assign(name, *override.value, problems, 0);
  assign_inside(override.path, parts, override, problems);
}

void Assignments::assign_inside(const std::vector<std::string>& path, std::size_t field_parts, const Override& override,
                                std::vector<Problem>& problems) {
  std::string field;
  field_parts_of(path, field);
  Value root = current(field);
  Value* place = &root;
  std::string name = field;
  const bool is_mapping = schema().find(field)->type.starts_with("mapping") || schema().find(field)->type == "any";
  for (std::size_t i = field_parts; i < path.size(); ++i) {
    const std::string& part = path[i];
    const bool last = i + 1 == path.size();
    if (place->is_list()) {
      const std::size_t index = is_index(part) ? std::stoul(part) : kMaxListIndex;
      const bool appends = index == place->list.size() && last && override.operation != Override::Operation::kSet;
      if (index >= place->list.size() && !appends) {
        problems.push_back({field, name + " has no element " + part + ": it is " + to_flow_text(*place) + ".",
                            "command line",
                            "Use an index below " + std::to_string(place->list.size()) + ", or give the whole list."});
        return;
      }
      if (appends) place->list.emplace_back();
      place = &place->list[index];
    } else if (place->is_map() || (place->is_null() && is_mapping)) {
      if (place->is_null()) *place = Value::of_map({});
      const auto same = [&](const auto& entry) { return entry.first == part; };
      auto found = std::find_if(place->map.begin(), place->map.end(), same);
      if (found == place->map.end() && override.operation == Override::Operation::kSet) {
        problems.push_back({field,
                            "Could not override '" + join_path(path) + "': " + name + " has no entry " + part + ".",
                            "command line", "To add it write ++" + override.text + "."});
        return;
      }
      if (found == place->map.end()) {
        place->map.emplace_back(part, Value::null());
        found = place->map.end() - 1;
      }
      place = &found->second;
    } else {
      problems.push_back(unknown_name(join_path(path), "command line", problems.size() < kMaxHints));
      return;
    }
    name += "." + part;
  }
  *place = *override.value;
  root.origin = override.value->origin;
  values_[field] = std::move(root);
}

void Assignments::remove(const std::vector<std::string>& path, const Override& override,
                         std::vector<Problem>& problems) {
  const std::string name = join_path(path);
  std::string field;
  const std::size_t parts = field_parts_of(path, field);
  if (parts == 0 && path.size() == 1 && may_be_null(name)) return assign(name, Value::null(), problems, 0);
  Value root = parts == 0 ? Value::null() : current(field);
  Value* parent = nullptr;
  Value* place = &root;
  for (std::size_t i = parts; parts > 0 && i < path.size() && place != nullptr; ++i) {
    parent = place;
    const auto same = [&](const auto& entry) { return entry.first == path[i]; };
    const auto found = std::find_if(place->map.begin(), place->map.end(), same);
    if (found != place->map.end()) {
      place = &found->second;
    } else if (place->is_list() && is_index(path[i]) && std::stoul(path[i]) < place->list.size()) {
      place = &place->list[std::stoul(path[i])];
    } else {
      place = nullptr;
    }
  }
  if (parts == 0 || place == nullptr) {
    Problem problem = unknown_name(name, "command line", problems.size() < kMaxHints);
    problem.message = "Could not delete from config. '" + name + "' does not exist.";
    problems.push_back(std::move(problem));
    return;
  }
  if (override.value && !(*override.value == *place)) {
    problems.push_back({field,
                        "Could not delete from config. The value of '" + name + "' is " + to_message_text(*place) +
                            " and not " + to_message_text(*override.value) + ".",
                        "command line", "Leave the value out: ~" + name + "."});
    return;
  }
  if (parent == nullptr) {
    values_.erase(field);
    return;
  }
  std::erase_if(parent->map, [&](const auto& entry) { return &entry.second == place; });
  if (parent->is_list()) parent->list.erase(parent->list.begin() + (place - parent->list.data()));
  root.origin = {Origin::Kind::kCommandLine, "command line"};
  values_[field] = std::move(root);
}

}  // namespace pharos::config
