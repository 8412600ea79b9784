// An untyped configuration value with its origin: what YAML files and overrides are read into before the schema checks
// types.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pharos::config {

/// Where a value was set.
struct Origin {
  enum class Kind { kDefault, kRecipe, kParameter, kRunFile, kCommandLine, kDerived };
  Kind kind = Kind::kDefault;
  std::string text = "default";  ///< for people: "recipe quickstart (recipes/quickstart.yaml:14)", "command line", …
};

/// Values nest at most this deep; deeper input is a UserError.
inline constexpr int kMaxValueDepth = 32;

struct Value {
  enum class Kind { kNull, kBool, kInteger, kFloat, kString, kList, kMap };
  using Entry = std::pair<std::string, Value>;

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0.0;
  std::string text = {};  ///< the string; for numbers the spelling of the source, if there was one
  std::vector<Value> list = {};
  std::vector<Entry> map = {};  ///< in source order, keys unique
  Origin origin = {};

  static Value null() { return {}; }
  static Value of_bool(bool value);
  static Value of_integer(std::int64_t value);
  static Value of_float(double value);
  static Value of_string(std::string value);
  static Value of_list(std::vector<Value> values);
  static Value of_map(std::vector<Entry> entries);

  bool is_null() const { return kind == Kind::kNull; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }
  /// Entry of a map, or nullptr.
  const Value* find(std::string_view key) const;
};

/// Same content; origins and the spelling of numbers do not count. NaN equals NaN.
bool operator==(const Value& left, const Value& right);

/// The value a plain (unquoted) word stands for: true/false and null in any case, integers with sign and `_`, floats
/// with `1e-4`, `.5`, `inf`, `nan`; anything else is a string. An integer beyond 64 bits becomes a float.
Value classify_word(std::string_view word);

/// One line of YAML flow text that reads back as the same value.
std::string to_flow_text(const Value& value);

/// As a person writes it in a message: strings without quotes.
std::string to_message_text(const Value& value);

/// Shortest decimal text that reads back as the same double, always with a point, an exponent, or inf/nan.
std::string float_text(double value);

/// Kind in words: "an integer", "a list", …
std::string kind_text(const Value& value);

/// Gives `value` and everything in it this origin.
void set_origin(Value& value, const Origin& origin);

}  // namespace pharos::config
