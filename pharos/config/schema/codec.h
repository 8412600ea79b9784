// Between an untyped Value and a typed member of RunConfig. One Codec per member type; schema declarations choose it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pharos/config/overrides/value.h"
#include "pharos/config/schema/enum_names.h"

namespace pharos::config {

/// What a conversion says when it fails: the rest of the sentence "field = value …", for example "is not an integer".
using ConversionFault = std::optional<std::string>;

struct Codec {
  std::string type_name;             ///< "int", "float?", "list of str", …; "?" means null is allowed
  std::vector<std::string> choices;  ///< spellings of an enumeration
  Value (*read)(const void* member);
  ConversionFault (*write)(const Value& value, void* member);
};

ConversionFault convert(const Value& value, bool& member);
ConversionFault convert(const Value& value, std::int64_t& member);
ConversionFault convert(const Value& value, double& member);
ConversionFault convert(const Value& value, std::string& member);

Value to_value(bool member);
Value to_value(std::int64_t member);
Value to_value(double member);
Value to_value(const std::string& member);

inline std::string type_text(const bool*) { return "bool"; }
inline std::string type_text(const std::int64_t*) { return "int"; }
inline std::string type_text(const double*) { return "float"; }
inline std::string type_text(const std::string*) { return "str"; }

template <typename T>
requires std::is_enum_v<T> std::string type_text(const T*) { return "choice"; }
template <typename T>
std::string type_text(const std::vector<T>*) {
  return "list of " + type_text(static_cast<const T*>(nullptr));
}
inline std::string type_text(const std::map<std::string, std::string>*) { return "mapping of str"; }
inline std::string type_text(const std::variant<std::int64_t, std::vector<std::int64_t>>*) {
  return "int or list of int";
}
template <typename T>
std::string type_text(const std::optional<T>*) {
  return type_text(static_cast<const T*>(nullptr)) + "?";
}

/// Name of `value` among `names`, ignoring case and taking `-` as `_`; -1 when there is none.
int find_name(const std::string& value, const std::vector<EnumSpelling>& names);
/// Spellings shown to people: the first one of each value.
std::vector<std::string> canonical_names(const std::vector<EnumSpelling>& names);
std::string choice_rule(const std::vector<std::string>& choices);

template <typename T>
requires std::is_enum_v<T> Value to_value(T member) {
  for (const EnumSpelling& spelling : spellings(T{})) {
    if (spelling.value == static_cast<int>(member)) return Value::of_string(spelling.name);
  }
  return Value::null();
}
template <typename T>
requires std::is_enum_v<T> ConversionFault convert(const Value& value, T& member) {
  const auto& names = spellings(T{});
  const bool scalar = !value.is_null() && !value.is_list() && !value.is_map();
  const int found = scalar ? find_name(to_message_text(value), names) : -1;
  if (found < 0) return choice_rule(canonical_names(names));
  member = static_cast<T>(found);
  return std::nullopt;
}

template <typename T>
Value to_value(const std::vector<T>& member) {
  Value result = Value::of_list({});
  for (const T& element : member) result.list.push_back(to_value(element));
  return result;
}
/// A scalar is taken as a list of one.
template <typename T>
ConversionFault convert(const Value& value, std::vector<T>& member) {
  if (value.is_null()) return "must not be null; an empty list is []";
  std::vector<T> elements;
  const std::vector<Value> single = value.is_list() ? std::vector<Value>{} : std::vector<Value>{value};
  for (const Value& element : value.is_list() ? value.list : single) {
    T converted{};
    if (auto fault = convert(element, converted)) return "has element " + to_message_text(element) + " which " + *fault;
    elements.push_back(std::move(converted));
  }
  member = std::move(elements);
  return std::nullopt;
}

Value to_value(const std::map<std::string, std::string>& member);
ConversionFault convert(const Value& value, std::map<std::string, std::string>& member);
Value to_value(const std::variant<std::int64_t, std::vector<std::int64_t>>& member);
ConversionFault convert(const Value& value, std::variant<std::int64_t, std::vector<std::int64_t>>& member);

template <typename T>
Value to_value(const std::optional<T>& member) {
  return member ? to_value(*member) : Value::null();
}
template <typename T>
ConversionFault convert(const Value& value, std::optional<T>& member) {
  if (value.is_null()) {
    member.reset();
    return std::nullopt;
  }
  T converted{};
  if (auto fault = convert(value, converted)) return fault;
  member = std::move(converted);
  return std::nullopt;
}

template <typename T>
struct Unwrap {
  using type = T;
};
template <typename T>
struct Unwrap<std::optional<T>> {
  using type = T;
};

template <typename T>
std::vector<std::string> choices_of() {
  using Plain = typename Unwrap<T>::type;
  if constexpr (std::is_enum_v<Plain>) {
    return canonical_names(spellings(Plain{}));
  } else {
    return {};
  }
}

template <typename T>
const Codec& codec_of() {
  static const Codec codec{type_text(static_cast<const T*>(nullptr)), choices_of<T>(),
                           [](const void* member) { return to_value(*static_cast<const T*>(member)); },
                           [](const Value& value, void* member) { return convert(value, *static_cast<T*>(member)); }};
  return codec;
}

}  // namespace pharos::config
