#include "pharos/config/grammar/pipeline_layout.h"

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::config {
namespace {

constexpr std::size_t kMaxLayout = 65536;

class LayoutParser {
 public:
  explicit LayoutParser(const std::string& text) : text_(text) {}

  std::string parse() {
    std::string expanded = parse_sequence(0);
    if (position_ < text_.size()) fail("unexpected `" + std::string(1, text_[position_]) + "`");
    return expanded;
  }

 private:
  [[noreturn]] void fail(const std::string& rule) const {
    throw base::UserError(
        {.what = "model.pipeline_model_parallel_layout = " + text_.substr(0, 200) + ": " + rule + " at column " +
                 std::to_string(base::count_characters(std::string_view(text_).substr(0, position_)) + 1) + ".",
         .fix = "Use E, t, m, L, | and repetitions such as t*3 or (tt|)*4."});
  }

  std::string parse_sequence(int depth) {
    std::string result;
    while (position_ < text_.size() && text_[position_] != ')') {
      const char c = text_[position_];
      if (c == ',' || c == ' ') {
        ++position_;
        continue;
      }
      std::string item;
      if (c == '(') {
        if (depth >= kMaxValueDepth) fail("parentheses nest too deep");
        ++position_;
        item = parse_sequence(depth + 1);
        if (position_ >= text_.size()) fail("a parenthesis is not closed");
        ++position_;
      } else if (std::string_view("EtmL|").find(c) != std::string_view::npos) {
        item = c;
        ++position_;
      } else {
        fail("unexpected `" + std::string(1, c) + "`");
      }
      const std::size_t repetitions = parse_repetition();
      if (item.size() * repetitions + result.size() > kMaxLayout) fail("the layout is too long");
      for (std::size_t i = 0; i < repetitions; ++i) result += item;
    }
    return result;
  }

  std::size_t parse_repetition() {
    if (position_ >= text_.size() || text_[position_] != '*') return 1;
    ++position_;
    std::size_t count = 0;
    const std::size_t start = position_;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      count = count * 10 + static_cast<std::size_t>(text_[position_++] - '0');
      if (count > kMaxLayout) fail("the repetition is too large");
    }
    if (position_ == start) fail("a number must follow `*`");
    return count;
  }

  const std::string& text_;
  std::size_t position_ = 0;
};

}  // namespace

std::vector<std::string> parse_pipeline_layout(const std::string& layout) {
  const std::string expanded = LayoutParser(layout).parse();
  std::vector<std::string> stages(1);
  for (const char c : expanded) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

std::optional<Value> layout_text_of(const Value& value) {
  if (!value.is_list()) return std::nullopt;
  std::string text;
  for (std::size_t stage = 0; stage < value.list.size(); ++stage) {
    if (stage > 0) text += '|';
    if (!value.list[stage].is_list()) return std::nullopt;
    for (const Value& element : value.list[stage].list) {
      const std::string name = to_message_text(element);
      const char letter = name == "embedding" ? 'E'
                          : name == "decoder" ? 't'
                          : name == "mtp"     ? 'm'
                          : name == "loss"    ? 'L'
                                              : '?';
      if (letter == '?') return std::nullopt;
      text += letter;
    }
  }
  return Value::of_string(text);
}

}  // namespace pharos::config
