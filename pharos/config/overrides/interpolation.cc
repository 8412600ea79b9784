#include "pharos/config/overrides/interpolation.h"

#include <algorithm>
#include <cctype>

#include "pharos/base/text.h"
#include "pharos/config/schema/schema.h"

namespace pharos::config {
namespace {

constexpr std::size_t kMaxTextBytes = 1 << 20;

class Interpolator {
 public:
  Interpolator(const std::map<std::string, Value>& parameters, const Assignments& assignments,
               std::vector<Problem>& problems)
      : parameters_(parameters), assignments_(assignments), problems_(problems) {}

  Value run(const std::string& name, const Value& value) {
    if (value.is_string()) return value.text.find("${") == std::string::npos ? value : run_text(name, value);
    Value result = value;
    for (Value& element : result.list) element = run(name, element);
    for (auto& entry : result.map) entry.second = run(name, entry.second);
    return result;
  }

 private:
  void fail(const std::string& name, const Value& value, const std::string& rule, const std::string& remedy) {
    problems_.push_back({name, name + " = " + value.text.substr(0, 200) + " " + rule + ".", value.origin.text, remedy});
  }

  Value run_text(const std::string& name, const Value& value) {
    const std::string& text = value.text;
    std::string result;
    for (std::size_t i = 0; i < text.size();) {
      if (text.compare(i, 3, "\\${") == 0) {
        result += "${";
        i += 3;
        continue;
      }
      if (text.compare(i, 2, "${") != 0) {
        result += text[i++];
        continue;
      }
      const std::size_t close = text.find('}', i);
      if (close == std::string::npos) {
        fail(name, value, "has an interpolation that is not closed", "Write ${section.field}.");
        return value;
      }
      Value found;
      if (!look_up(name, value, text.substr(i + 2, close - i - 2), found)) return value;
      if (i == 0 && close + 1 == text.size()) {
        found.origin = value.origin;
        return found;
      }
      result += to_message_text(found);
      if (result.size() > kMaxTextBytes) {
        fail(name, value, "grows beyond 1 MiB", "Shorten it.");
        return value;
      }
      i = close + 1;
    }
    Value joined = Value::of_string(std::move(result));
    joined.origin = value.origin;
    return joined;
  }

  bool look_up(const std::string& name, const Value& value, const std::string& reference, Value& found) {
    const bool plain = !reference.empty() && std::all_of(reference.begin(), reference.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    });
    if (!plain) {
      fail(name, value, "has ${" + reference + "}, which is no name of a parameter or field",
           "Write ${parameter} or ${section.field}; resolvers such as ${oc.env:X} are not run.");
      return false;
    }
    if (std::find(open_.begin(), open_.end(), reference) != open_.end() ||
        open_.size() > static_cast<std::size_t>(kMaxValueDepth)) {
      fail(name, value, "refers to itself through ${" + reference + "}", "Give one of the values directly.");
      return false;
    }
    const std::string field_name = canonical_name(reference);
    const Value* source = nullptr;
    if (const auto parameter = parameters_.find(reference); parameter != parameters_.end()) {
      source = &parameter->second;
    } else if (const Field* field = schema().find(field_name)) {
      source = assignments_.find(field_name);
      if (source == nullptr) source = &field->default_value;
    } else {
      std::vector<std::string> known;
      for (const auto& parameter_value : parameters_) known.push_back(parameter_value.first);
      const auto nearest = base::nearest_names(reference.substr(0, 100), known);
      std::string hint = nearest.empty() ? nearest_hint(field_name) : "Did you mean " + base::join(nearest, ", ") + "?";
      if (hint.empty()) hint = "Use a parameter of the recipe or a field.";
      fail(name, value, "has ${" + reference + "}, but there is no such parameter or field", hint);
      return false;
    }
    if (++num_look_ups_ > 10000) {
      fail(name, value, "needs too many look-ups", "Use fewer interpolations.");
      return false;
    }
    open_.push_back(reference);
    const std::size_t problems_before = problems_.size();
    found = run(name, *source);
    open_.pop_back();
    return problems_.size() == problems_before;
  }

  const std::map<std::string, Value>& parameters_;
  const Assignments& assignments_;
  std::vector<Problem>& problems_;
  std::vector<std::string> open_;
  int num_look_ups_ = 0;
};

}  // namespace

Value interpolate(const std::string& name, const Value& value, const std::map<std::string, Value>& parameters,
                  const Assignments& assignments, std::vector<Problem>& problems) {
  return Interpolator(parameters, assignments, problems).run(name, value);
}

}  // namespace pharos::config
