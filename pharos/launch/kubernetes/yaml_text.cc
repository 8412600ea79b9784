#include "pharos/launch/kubernetes/yaml_text.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

using Json = nlohmann::ordered_json;

/// JSON's quoted text is YAML's, but for characters that YAML takes for line ends or refuses.
std::string double_quoted(const Json& text) {
  std::string result;
  try {
    result = text.dump();
  } catch (const Json::type_error&) {
    throw base::UserError({.what = "A word of the command line is not UTF-8; a manifest cannot hold it.",
                           .where = "command line",
                           .fix = "Use UTF-8 in recipe, overrides and paths."});
  }
  static const std::pair<std::string_view, std::string_view> kEscapes[] = {{"\x7f", "\\x7F"},
                                                                           {"\xc2\x85", "\\N"},
                                                                           {"\xe2\x80\xa8", "\\L"},
                                                                           {"\xe2\x80\xa9", "\\P"},
                                                                           {"\xef\xbb\xbf", "\\uFEFF"}};
  for (const auto& [character, escape] : kEscapes) {
    for (std::size_t at = 0; (at = result.find(character, at)) != std::string::npos; at += escape.size())
      result.replace(at, character.size(), escape);
  }
  return result;
}

/// Whether a literal block keeps `text`: lines of printable ASCII, the first not indented, one line end at the end.
bool fits_block(const std::string& text) {
  if (text.size() < 2 || text.back() != '\n' || text[text.size() - 2] == '\n') return false;
  if (text.front() == ' ' || text.front() == '\n') return false;
  return std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

/// Plain where no YAML reader takes it for anything but text.
std::string key_text(const std::string& key) {
  static const std::set<std::string_view> kOtherTypes = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"};
  std::string lower;
  for (const char c : key) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const bool is_word = !lower.empty() && lower.front() >= 'a' && lower.front() <= 'z' &&
                       lower.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_./") == std::string::npos;
  return is_word && !kOtherTypes.contains(lower) ? key : double_quoted(key);
}

bool is_nested(const Json& value) { return value.is_structured() && !value.empty(); }

void write(const Json& value, std::size_t indent, std::string& text);

/// What follows "key:" or "-".
void write_scalar(const Json& value, std::size_t indent, std::string& text) {
  if (!value.is_string()) {
    text += value.dump() + "\n";
  } else if (const auto& content = value.get_ref<const std::string&>(); fits_block(content)) {
    text += "|\n";
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);)
      text += (line.empty() ? "" : std::string(indent, ' ') + line) + "\n";
  } else {
    text += double_quoted(value) + "\n";
  }
}

void write(const Json& value, std::size_t indent, std::string& text) {
  const std::string space(indent, ' ');
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      text += space + key_text(key) + ":";
      if (is_nested(item)) {
        text += "\n";
        write(item, indent + 2, text);
      } else {
        text += " ";
        write_scalar(item, indent + 2, text);
      }
    }
    return;
  }
  for (const Json& item : value) {
    if (is_nested(item)) {
      std::string inner;
      write(item, indent + 2, inner);
      text += space + "- " + inner.substr(indent + 2);
    } else {
      text += space + "- ";
      write_scalar(item, indent + 2, text);
    }
  }
}

}  // namespace

std::string to_yaml(const Json& value) {
  std::string text;
  write(value, 0, text);
  return text;
}

}  // namespace pharos::launch
