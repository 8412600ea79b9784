#include "pharos/config/overrides/override_casts.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace pharos::config {
namespace {

nlohmann::ordered_json to_json(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kBool:
      return value.boolean;
    case Value::Kind::kInteger:
      return value.integer;
    case Value::Kind::kFloat:
      return value.number;
    case Value::Kind::kString:
      return value.text;
    case Value::Kind::kList: {
      auto list = nlohmann::ordered_json::array();
      for (const Value& element : value.list) list.push_back(to_json(element));
      return list;
    }
    case Value::Kind::kMap: {
      auto object = nlohmann::ordered_json::object();
      for (const auto& [key, element] : value.map) object[key] = to_json(element);
      return object;
    }
  }
  return nullptr;
}

std::optional<Value> cast_number(bool to_integer, const Value& value) {
  const Value source = value.is_string() ? classify_word(value.text) : value;
  switch (source.kind) {
    case Value::Kind::kBool:
      return to_integer ? Value::of_integer(source.boolean) : Value::of_float(source.boolean);
    case Value::Kind::kInteger:
      return to_integer ? Value::of_integer(source.integer) : Value::of_float(static_cast<double>(source.integer));
    case Value::Kind::kFloat:
      if (!to_integer) return Value::of_float(source.number);
      // Text with a fraction is no integer; a number is cut towards zero.
      if (value.is_string() || !(std::abs(source.number) < 9.2e18)) return std::nullopt;
      return Value::of_integer(static_cast<std::int64_t>(source.number));
    default:
      return std::nullopt;
  }
}

std::optional<Value> cast_bool(const Value& value) {
  const Value source = value.is_string() ? classify_word(value.text) : value;
  if (source.kind == Value::Kind::kBool) return source;
  if (value.is_string()) return std::nullopt;
  if (source.kind == Value::Kind::kInteger) return Value::of_bool(source.integer != 0);
  if (source.kind == Value::Kind::kFloat) return Value::of_bool(source.number != 0.0);
  return std::nullopt;
}

std::optional<Value> cast_scalar(std::string_view function, const Value& value) {
  if (function == "int") return cast_number(true, value);
  if (function == "float") return cast_number(false, value);
  if (function == "bool") return cast_bool(value);
  return Value::of_string(value.is_string() ? value.text : to_message_text(value));
}

}  // namespace

bool is_cast(std::string_view function) {
  return function == "int" || function == "float" || function == "str" || function == "bool" || function == "json_str";
}

std::optional<Value> apply_cast(std::string_view function, const Value& value, std::string& rule) {
  if (function == "json_str") {
    return Value::of_string(to_json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (value.is_list() || value.is_map()) {
    Value result = value;
    for (Value& element : result.list) {
      auto cast = apply_cast(function, element, rule);
      if (!cast) return std::nullopt;
      element = std::move(*cast);
    }
    for (auto& entry : result.map) {
      auto cast = apply_cast(function, entry.second, rule);
      if (!cast) return std::nullopt;
      entry.second = std::move(*cast);
    }
    return result;
  }
  auto cast = cast_scalar(function, value);
  if (!cast) rule = std::string(function) + "() cannot convert " + to_message_text(value);
  return cast;
}

}  // namespace pharos::config
