#include "pharos/config/overrides/value.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

namespace pharos::config {
namespace {

bool equals_ignoring_case(std::string_view word, std::string_view lower) {
  return word.size() == lower.size() && std::equal(word.begin(), word.end(), lower.begin(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         });
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Digits with single underscores between them; true when `text` is nothing else. No leading zero unless
/// `leading_zero`.
bool is_digits(std::string_view text, bool leading_zero) {
  if (text.empty() || !is_digit(text.front()) || !is_digit(text.back())) return false;
  if (!leading_zero && text.size() > 1 && text.front() == '0') return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (is_digit(text[i])) continue;
    if (text[i] != '_' || text[i - 1] == '_') return false;
  }
  return true;
}

/// [digits][.digits][e[sign]digits] with a point or an exponent, and at least one digit.
bool is_decimal_float(std::string_view text) {
  std::string_view mantissa = text;
  bool has_exponent = false;
  if (const auto exponent = text.find_first_of("eE"); exponent != std::string_view::npos) {
    has_exponent = true;
    mantissa = text.substr(0, exponent);
    std::string_view digits = text.substr(exponent + 1);
    if (!digits.empty() && (digits.front() == '+' || digits.front() == '-')) digits.remove_prefix(1);
    if (!is_digits(digits, true)) return false;
  }
  const auto point = mantissa.find('.');
  if (point == std::string_view::npos) return has_exponent && is_digits(mantissa, true);
  const std::string_view whole = mantissa.substr(0, point), fraction = mantissa.substr(point + 1);
  if (whole.empty() && fraction.empty()) return false;
  return (whole.empty() || is_digits(whole, true)) && (fraction.empty() || is_digits(fraction, true));
}

/// A double from text already known to have the form of one; too large becomes infinite, too small zero.
double to_double(std::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (c != '_' && c != '+') plain += c;
  }
  if (const auto exponent = plain.find_first_of("eE"); exponent != std::string::npos && exponent + 8 < plain.size()) {
    const bool negative_exponent = plain[exponent + 1] == '-';
    return negative_exponent ? 0.0 : std::numeric_limits<double>::infinity();
  }
  double value = 0.0;
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (result.ec == std::errc::result_out_of_range) {
    const auto exponent = plain.find_first_of("eE");
    const bool tiny = exponent != std::string::npos && plain[exponent + 1] == '-';
    const double limit = tiny ? 0.0 : std::numeric_limits<double>::infinity();
    return plain.front() == '-' ? -limit : limit;
  }
  return value;
}

bool needs_quotes(const std::string& text) {
  if (text.empty() || !classify_word(text).is_string()) return true;
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '/' || c == '.' || c >= 0x80; };
  // Other YAML readers take more words starting with a digit for numbers than this one.
  if (!plain(static_cast<unsigned char>(text.front())) || is_digit(text.front())) return true;
  return !std::all_of(text.begin(), text.end(), [&](char c) {
    return plain(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '@' || c == '$' || c == '=';
  });
}

std::string quote(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\x";
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string join_texts(const Value& value) {
  std::string text;
  const auto separate = [&] {
    if (!text.empty()) text += ", ";
  };
  for (const Value& element : value.list) {
    separate();
    text += to_flow_text(element);
  }
  for (const auto& [key, element] : value.map) {
    separate();
    text.append(to_flow_text(Value::of_string(key))).append(": ").append(to_flow_text(element));
  }
  const char* brackets = value.is_list() ? "[]" : "{}";
  text.insert(text.begin(), brackets[0]);
  return text + brackets[1];
}

}  // namespace

Value Value::of_bool(bool value) {
  Value result;
  result.kind = Kind::kBool;
  result.boolean = value;
  return result;
}

Value Value::of_integer(std::int64_t value) {
  Value result;
  result.kind = Kind::kInteger;
  result.integer = value;
  return result;
}

Value Value::of_float(double value) {
  Value result;
  result.kind = Kind::kFloat;
  result.number = value;
  return result;
}

Value Value::of_string(std::string value) {
  Value result;
  result.kind = Kind::kString;
  result.text = std::move(value);
  return result;
}

Value Value::of_list(std::vector<Value> values) {
  Value result;
  result.kind = Kind::kList;
  result.list = std::move(values);
  return result;
}

Value Value::of_map(std::vector<Entry> entries) {
  Value result;
  result.kind = Kind::kMap;
  result.map = std::move(entries);
  return result;
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : map) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool operator==(const Value& left, const Value& right) {
  if (left.kind != right.kind) return false;
  switch (left.kind) {
    case Value::Kind::kNull:
      return true;
    case Value::Kind::kBool:
      return left.boolean == right.boolean;
    case Value::Kind::kInteger:
      return left.integer == right.integer;
    case Value::Kind::kFloat:
      return left.number == right.number || (std::isnan(left.number) && std::isnan(right.number));
    case Value::Kind::kString:
      return left.text == right.text;
    case Value::Kind::kList:
      return left.list == right.list;
    case Value::Kind::kMap:
      return std::equal(left.map.begin(), left.map.end(), right.map.begin(), right.map.end(),
                        [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; });
  }
  return false;
}

Value classify_word(std::string_view word) {
  Value result;
  if (equals_ignoring_case(word, "null")) return result;
  if (equals_ignoring_case(word, "true")) return Value::of_bool(true);
  if (equals_ignoring_case(word, "false")) return Value::of_bool(false);
  std::string_view unsigned_word = word;
  bool negative = false;
  if (!word.empty() && (word.front() == '+' || word.front() == '-')) {
    negative = word.front() == '-';
    unsigned_word.remove_prefix(1);
  }
  if (is_digits(unsigned_word, false)) {
    std::string plain = negative ? "-" : "";
    for (const char c : unsigned_word) {
      if (c != '_') plain += c;
    }
    std::int64_t integer = 0;
    const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), integer);
    result = parsed.ec == std::errc() ? Value::of_integer(integer) : Value::of_float(to_double(word));
  } else if (is_decimal_float(unsigned_word)) {
    result = Value::of_float(to_double(word));
  } else if (equals_ignoring_case(unsigned_word, "inf") || equals_ignoring_case(unsigned_word, ".inf")) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    result = Value::of_float(negative ? -kInfinity : kInfinity);
  } else if (equals_ignoring_case(word, "nan") || equals_ignoring_case(word, ".nan")) {
    result = Value::of_float(std::numeric_limits<double>::quiet_NaN());
  } else {
    return Value::of_string(std::string(word));
  }
  result.text = std::string(word);
  return result;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  if (const auto exponent = text.find('e'); exponent != std::string::npos && text[exponent + 2] == '0')
    text.erase(exponent + 2, 1);
  return text;
}

std::string to_flow_text(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kBool:
      return value.boolean ? "true" : "false";
    case Value::Kind::kInteger:
      return std::to_string(value.integer);
    case Value::Kind::kFloat:
      return float_text(value.number);
    case Value::Kind::kString:
      return needs_quotes(value.text) ? quote(value.text) : value.text;
    case Value::Kind::kList:
    case Value::Kind::kMap:
      return join_texts(value);
  }
  return "";
}

std::string to_message_text(const Value& value) {
  if (value.is_string()) return value.text.empty() ? "\"\"" : value.text;
  const bool number = value.kind == Value::Kind::kInteger || value.kind == Value::Kind::kFloat;
  return number && !value.text.empty() ? value.text : to_flow_text(value);
}

std::string kind_text(const Value& value) {
  static constexpr const char* kTexts[] = {"null", "a boolean", "an integer", "a number",
                                           "text", "a list",    "a mapping"};
  return kTexts[static_cast<int>(value.kind)];
}

void set_origin(Value& value, const Origin& origin) {
  value.origin = origin;
  for (Value& element : value.list) set_origin(element, origin);
  for (auto& entry : value.map) set_origin(entry.second, origin);
}

}  // namespace pharos::config
