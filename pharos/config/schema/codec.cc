#include "pharos/config/schema/codec.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "pharos/base/text.h"

namespace pharos::config {
namespace {

std::string fold(const std::string& name) {
  std::string folded = name;
  for (char& c : folded) c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return folded;
}

bool is_number(const Value& value) { return value.kind == Value::Kind::kInteger || value.kind == Value::Kind::kFloat; }

}  // namespace

ConversionFault convert(const Value& value, bool& member) {
  if (value.kind != Value::Kind::kBool) return "is not a boolean (true or false)";
  member = value.boolean;
  return std::nullopt;
}

ConversionFault convert(const Value& value, std::int64_t& member) {
  if (value.kind == Value::Kind::kInteger) {
    member = value.integer;
    return std::nullopt;
  }
  // 1e3 is an integer; beyond 2^53 a double no longer tells integers apart.
  const bool integral = value.kind == Value::Kind::kFloat && std::abs(value.number) <= 9007199254740992.0 &&
                        std::trunc(value.number) == value.number;
  if (!integral) return "is not an integer";
  member = static_cast<std::int64_t>(value.number);
  return std::nullopt;
}

ConversionFault convert(const Value& value, double& member) {
  if (!is_number(value)) return "is not a number";
  member = value.kind == Value::Kind::kFloat ? value.number : static_cast<double>(value.integer);
  return std::nullopt;
}

ConversionFault convert(const Value& value, std::string& member) {
  if (!value.is_string() && !is_number(value)) return "is not text (it is " + kind_text(value) + ")";
  member = value.is_string() ? value.text : to_message_text(value);
  return std::nullopt;
}

ConversionFault convert(const Value& value, std::map<std::string, std::string>& member) {
  if (!value.is_map()) return "is not a mapping {name: value}";
  std::map<std::string, std::string> entries;
  for (const auto& [key, element] : value.map) {
    if (key.empty()) return "has an empty name";
    if (element.is_list() || element.is_map() || element.is_null())
      return "has entry " + key + " which is not a scalar";
    entries[key] = to_message_text(element);
    if (element.is_string()) entries[key] = element.text;
  }
  member = std::move(entries);
  return std::nullopt;
}

ConversionFault convert(const Value& value, std::variant<std::int64_t, std::vector<std::int64_t>>& member) {
  if (value.is_list()) {
    std::vector<std::int64_t> elements;
    if (auto fault = convert(value, elements)) return fault;
    member = std::move(elements);
    return std::nullopt;
  }
  std::int64_t single = 0;
  if (convert(value, single)) return "is neither an integer nor a list of integers";
  member = single;
  return std::nullopt;
}

Value to_value(bool member) { return Value::of_bool(member); }
Value to_value(std::int64_t member) { return Value::of_integer(member); }
Value to_value(double member) { return Value::of_float(member); }
Value to_value(const std::string& member) { return Value::of_string(member); }

Value to_value(const std::map<std::string, std::string>& member) {
  Value result = Value::of_map({});
  for (const auto& [key, text] : member) result.map.emplace_back(key, Value::of_string(text));
  return result;
}

Value to_value(const std::variant<std::int64_t, std::vector<std::int64_t>>& member) {
  if (const auto* single = std::get_if<std::int64_t>(&member)) return to_value(*single);
  return to_value(std::get<std::vector<std::int64_t>>(member));
}

int find_name(const std::string& value, const std::vector<EnumSpelling>& names) {
  const std::string folded = fold(value);
  for (const EnumSpelling& spelling : names) {
    if (fold(spelling.name) == folded) return spelling.value;
  }
  return -1;
}

std::vector<std::string> canonical_names(const std::vector<EnumSpelling>& names) {
  std::vector<std::string> canonical;
  std::vector<int> seen;
  for (const EnumSpelling& spelling : names) {
    if (std::find(seen.begin(), seen.end(), spelling.value) != seen.end()) continue;
    seen.push_back(spelling.value);
    canonical.push_back(spelling.name);
  }
  return canonical;
}

std::string choice_rule(const std::vector<std::string>& choices) {
  return "is not one of " + base::join(choices, ", ");
}

}  // namespace pharos::config
