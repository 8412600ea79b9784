#include "pharos/config/recipe/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <istream>
#include <streambuf>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::config {
namespace {

/// Reads a string_view as a stream without copying it.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

/// Builds the value from parser events, innermost open container last. Stops the parser by throwing UserError.
class ValueBuilder : public YAML::EventHandler {
 public:
  ValueBuilder(std::string file, Origin::Kind kind, std::string prefix)
      : file_(std::move(file)), kind_(kind), prefix_(std::move(prefix)) {}

  Value take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ > 1) fail(mark, "A second YAML document starts here.", "Keep one document in a file.");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(mark, Value::null());
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_anchor(mark, 1); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    add(mark, tag == "!" || expects_key() ? Value::of_string(text) : classify_word(text));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::of_list({}));
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Value::of_map({}));
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Value value;
    std::string key;
    bool has_key = false;
    YAML::Mark mark;
  };

  std::string place(const YAML::Mark& mark) const {
    return file_ + ":" + std::to_string(mark.is_null() ? 1 : mark.line + 1);
  }
  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what, const std::string& fix) const {
    throw base::UserError({.what = what, .where = place(mark), .fix = fix});
  }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) fail(mark, "YAML anchors and aliases are not accepted.", "Write the value out, or use ${...}.");
  }
  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") {
      fail(mark, "YAML tag " + tag + " is not accepted.", "Write the value without a tag.");
    }
  }
  bool expects_key() const { return !open_.empty() && open_.back().value.is_map() && !open_.back().has_key; }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Value value) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    if (expects_key()) fail(mark, "A mapping or list cannot be a key.", "Use a plain name as key.");
    if (open_.size() >= static_cast<std::size_t>(kMaxValueDepth)) {
      fail(mark, "The YAML nests deeper than " + std::to_string(kMaxValueDepth) + " levels.", "Flatten it.");
    }
    open_.push_back({std::move(value), "", false, mark});
  }
  void close() {
    Open finished = std::move(open_.back());
    open_.pop_back();
    add(finished.mark, std::move(finished.value));
  }
  void add(const YAML::Mark& mark, Value value) {
    if (expects_key()) {
      Open& parent = open_.back();
      if (!value.is_string()) fail(mark, "A key is empty.", "Give the entry a name.");
      if (parent.value.find(value.text) != nullptr) {
        fail(mark, "Key " + value.text + " appears twice in the same mapping.", "Keep one of the two.");
      }
      parent.key = value.text;
      parent.has_key = true;
      return;
    }
    value.origin = {kind_, prefix_.empty() ? place(mark) : prefix_ + " (" + place(mark) + ")"};
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.is_list()) {
      open_.back().value.list.push_back(std::move(value));
    } else {
      // An entry is known by the line of its key's value; for a block that is the first line inside it.
      open_.back().value.map.emplace_back(std::move(open_.back().key), std::move(value));
      open_.back().has_key = false;
    }
  }

  std::string file_;
  Origin::Kind kind_;
  std::string prefix_;
  std::vector<Open> open_;
  Value root_;
  int num_documents_ = 0;
};

}  // namespace

Value read_yaml(std::string_view text, const std::string& file, Origin::Kind kind, const std::string& origin_prefix) {
  if (text.size() > kMaxYamlBytes) {
    throw base::UserError({.what = "A configuration file of " + std::to_string(text.size()) + " bytes is too large.",
                           .where = file,
                           .why = "At most " + std::to_string(kMaxYamlBytes) + " bytes are read.",
                           .fix = "Give the path of a recipe, not of data."});
  }
  ValueBuilder builder(file, kind, origin_prefix);
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const int line = error.mark.is_null() ? 1 : error.mark.line + 1;
    throw base::UserError({.what = "YAML syntax error: " + error.msg + ".",
                           .where = file + ":" + std::to_string(line) + ":" + std::to_string(error.mark.column + 1),
                           .fix = "Correct the line; entries are `name: value`, indented with spaces."});
  }
  Value value = builder.take();
  return value.is_null() ? Value::of_map({}) : value;
}

}  // namespace pharos::config
