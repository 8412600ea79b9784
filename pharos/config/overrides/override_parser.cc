#include "pharos/config/overrides/override_parser.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/overrides/override_casts.h"

namespace pharos::config {
namespace {

constexpr std::size_t kMaxOverrideBytes = 64 * 1024;

bool is_word_character(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return std::isalnum(byte) || byte >= 0x80 || std::string_view("_/-\\+.$%*@?|:").find(c) != std::string_view::npos;
}

bool is_escapable(char c) { return std::string_view("\\()[]{}:=, \t").find(c) != std::string_view::npos; }

bool is_name(std::string_view text) {
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text.front())) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
}

/// Recursive descent over one override; every method leaves position_ after what it read.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Override parse() {
    Override result;
    result.text = std::string(text_);
    if (text_.size() > kMaxOverrideBytes)
      fail("the override is longer than 65536 characters", "Put it into a recipe file.");
    result.operation = parse_operation();
    const bool has_value = parse_key(result.path);
    if (!has_value) {
      if (result.operation != Override::Operation::kDelete) {
        fail("there is no `=`", "Write KEY=VALUE, for example train.train_iters=1000.");
      }
      return result;
    }
    skip_blanks();
    if (at_end()) {
      if (result.operation != Override::Operation::kDelete) result.value = Value::of_string("");
      return result;
    }
    result.value = parse_element(0);
    skip_blanks();
    if (peek() == ',') refuse_sweep("a comma-separated list without brackets");
    if (!at_end()) fail("unexpected `" + std::string(1, peek()) + "`", kQuoteHint);
    return result;
  }

 private:
  static constexpr const char* kQuoteHint =
      "Quote text that holds spaces, commas, `=` or brackets: key='\"a, b\"' (outer quotes are the shell's).";

  [[noreturn]] void fail(const std::string& rule, const std::string& fix) const {
    throw base::UserError({.what = "Cannot read the override `" + std::string(text_.substr(0, 200)) + "`: " + rule +
                                   " at column " +
                                   std::to_string(base::count_characters(text_.substr(0, position_)) + 1) + ".",
                           .where = "command line",
                           .fix = fix});
  }
  [[noreturn]] void refuse_sweep(const std::string& what) const {
    fail(what + " would sweep over several runs; one command starts one run",
         "Give one value; write a list with brackets: key=[1,2].");
  }

  bool at_end() const { return position_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\0'; }
  void skip_blanks() {
    while (!at_end() && (peek() == ' ' || peek() == '\t')) ++position_;
  }
  void expect(char c) {
    skip_blanks();
    if (at_end() || peek() != c)
      fail(std::string("expected `") + c + "`", "Check that brackets, quotes and commas pair up.");
    ++position_;
  }

  Override::Operation parse_operation() {
    if (peek() == '~') return ++position_, Override::Operation::kDelete;
    if (peek() != '+') return Override::Operation::kSet;
    ++position_;
    if (peek() != '+') return Override::Operation::kAdd;
    return ++position_, Override::Operation::kForceAdd;
  }

  /// Reads `a.b.0` and the `=` after it; false when the text ends without `=`.
  bool parse_key(std::vector<std::string>& path) {
    std::string part;
    const auto finish_part = [&] {
      const bool index =
          !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!is_name(part) && !index)
        fail("the key has an empty or malformed part", "Keys are dotted names: section.field.");
      path.push_back(std::move(part));
      part.clear();
    };
    for (; !at_end() && peek() != '='; ++position_) {
      const char c = peek();
      if (c == '@') fail("`@` selects a package of config groups, which Pharos has not", "Write section.field=value.");
      if (c == '/') fail("`/` selects a config group, which Pharos has not", "Write section.field=value.");
      if (c == '.') {
        finish_part();
        if (path.size() > static_cast<std::size_t>(kMaxValueDepth))
          fail("the key has too many parts", "Write section.field.");
      } else {
        part += c;
      }
    }
    while (!part.empty() && part.back() == ' ') part.pop_back();
    finish_part();
    if (at_end()) return false;
    ++position_;
    return true;
  }

  Value parse_element(int depth) {
    if (depth >= kMaxValueDepth)
      fail("values nest deeper than " + std::to_string(kMaxValueDepth), "Flatten the value.");
    skip_blanks();
    switch (peek()) {
      case '[':
        return parse_list(depth);
      case '{':
        return parse_map(depth);
      case '\'':
      case '"':
        return Value::of_string(parse_quoted());
      default:
        return parse_word_or_call(depth);
    }
  }

  Value parse_list(int depth) {
    std::vector<Value> values;
    expect('[');
    skip_blanks();
    while (peek() != ']') {
      if (!values.empty()) expect(',');
      values.push_back(parse_element(depth + 1));
      skip_blanks();
      if (at_end()) fail("the list is not closed", "Add `]`.");
    }
    expect(']');
    return Value::of_list(std::move(values));
  }

  Value parse_map(int depth) {
    Value result = Value::of_map({});
    expect('{');
    skip_blanks();
    while (peek() != '}') {
      if (!result.map.empty()) expect(',');
      skip_blanks();
      std::string key = peek() == '\'' || peek() == '"' ? parse_quoted() : parse_map_key();
      if (key.empty()) fail("a key of the mapping is empty", "Write {name: value}.");
      if (result.find(key) != nullptr) fail("key " + key + " appears twice", "Keep one of the two.");
      expect(':');
      skip_blanks();
      Value element = peek() == ',' || peek() == '}' ? Value::of_string("") : parse_element(depth + 1);
      result.map.emplace_back(std::move(key), std::move(element));
      skip_blanks();
      if (at_end()) fail("the mapping is not closed", "Add `}`.");
    }
    expect('}');
    return result;
  }

  std::string parse_map_key() {
    std::string key;
    while (!at_end() && is_word_character(peek()) && peek() != ':') key += text_[position_++];
    return key;
  }

  /// Between quotes everything is literal but `\'` (or `\"`); a run of backslashes before the closing quote is halved.
  std::string parse_quoted() {
    const char quote = text_[position_++];
    std::string result;
    while (true) {
      if (at_end()) fail("the quoted text is not closed", std::string("Add ") + quote + ".");
      std::size_t num_backslashes = 0;
      while (peek() == '\\') {
        ++num_backslashes;
        ++position_;
      }
      if (peek() != quote || at_end()) {
        result.append(num_backslashes, '\\');
        if (!at_end()) result += text_[position_++];
        continue;
      }
      result.append(num_backslashes / 2, '\\');
      ++position_;
      if (num_backslashes % 2 == 0) return result;
      result += quote;
    }
  }

  /// `${...}` with nested braces, as text; resolved later against fields and parameters.
  void read_interpolation(std::string& word) {
    int open_braces = 0;
    do {
      if (at_end()) fail("the interpolation is not closed", "Write ${section.field}.");
      if (peek() == '{') ++open_braces;
      if (peek() == '}') --open_braces;
      word += text_[position_++];
    } while (open_braces > 0 || word.back() == '$');
  }

  Value parse_word_or_call(int depth) {
    const std::size_t start = position_;
    std::string word;
    bool escaped = false;
    while (!at_end()) {
      const char c = peek();
      if (c == '$' && peek(1) == '{') {
        read_interpolation(word);
      } else if (c == '\\' && is_escapable(peek(1)) && position_ + 1 < text_.size()) {
        escaped = true;
        word += peek(1);
        position_ += 2;
      } else if (is_word_character(c)) {
        word += c;
        ++position_;
      } else {
        break;
      }
    }
    if (peek() == '(' && !escaped) return parse_call(word, depth);
    if (position_ == start) {
      if (at_end()) fail("a value is missing", "Write key=value; an empty text is key= or key=\"\".");
      fail("unexpected `" + std::string(1, peek()) + "`", kQuoteHint);
    }
    return escaped ? Value::of_string(std::move(word)) : classify_word(word);
  }

  Value parse_call(const std::string& function, int depth) {
    static constexpr std::string_view kSweeps[] = {"range", "choice", "glob", "interval", "sort", "shuffle", "tag"};
    if (std::find(std::begin(kSweeps), std::end(kSweeps), function) != std::end(kSweeps)) refuse_sweep(function + "()");
    if (!is_cast(function)) {
      fail("there is no function " + function + "()",
           "Use int(), float(), str(), bool() or json_str(), or quote the text.");
    }
    expect('(');
    const Value argument = parse_element(depth + 1);
    skip_blanks();
    if (peek() == ',') refuse_sweep("several arguments of a cast");
    expect(')');
    std::string rule;
    if (auto cast = apply_cast(function, argument, rule)) return std::move(*cast);
    fail(rule, "Give the value without the cast.");
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace

Override parse_override(std::string_view text) {
  Override result = Parser(text).parse();
  if (result.value) set_origin(*result.value, {Origin::Kind::kCommandLine, "command line"});
  return result;
}

std::string join_path(const std::vector<std::string>& path) {
  std::string joined;
  for (const std::string& part : path) {
    if (!joined.empty()) joined += '.';
    joined += part;
  }
  return joined;
}

}  // namespace pharos::config
