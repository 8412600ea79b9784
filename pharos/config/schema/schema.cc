#include "pharos/config/schema/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/recipe/yaml_reader.h"
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

/// Longer names are no misspelt fields.
constexpr std::size_t kMaxHintedName = 100;

/// Value of flow YAML text; plain words, which nearly all are, without the YAML parser.
Value flow_value(const std::string& text) {
  if (text.find_first_of("[{\"'") == std::string::npos) return classify_word(text);
  return read_yaml("value: " + text, "stored value", Origin::Kind::kDefault, "").map.front().second;
}

ConversionFault convert_any(const Value&, void*) { return std::nullopt; }
Value read_nothing(const void*) { return Value::null(); }

const Codec& stored_codec(const std::string& type) {
  static const Codec any{"any", {}, &read_nothing, &convert_any};
  static const std::array<const Codec*, 11> codecs = {&codec_of<bool>(),
                                                      &codec_of<std::int64_t>(),
                                                      &codec_of<double>(),
                                                      &codec_of<std::string>(),
                                                      &codec_of<std::optional<bool>>(),
                                                      &codec_of<std::optional<std::int64_t>>(),
                                                      &codec_of<std::optional<double>>(),
                                                      &codec_of<std::optional<std::string>>(),
                                                      &codec_of<std::vector<std::string>>(),
                                                      &codec_of<std::optional<std::vector<std::string>>>(),
                                                      &codec_of<std::optional<std::vector<std::int64_t>>>()};
  for (const Codec* codec : codecs) {
    if (codec->type_name == type) return *codec;
  }
  PHAROS_CHECK(type == "any", "unknown type of a stored field: " + type);
  return any;
}

/// Checks a stored field's value by converting it into a temporary of its type.
ConversionFault check_stored(const Field& field, const Value& value) {
  const std::string& type = field.type;
  if (type == "any") return std::nullopt;
  if (value.is_null() && field.nullable()) return std::nullopt;
  const std::string plain = field.nullable() ? type.substr(0, type.size() - 1) : type;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<std::string> texts;
  std::vector<std::int64_t> integers;
  if (plain == "bool") return convert(value, boolean);
  if (plain == "int") return convert(value, integer);
  if (plain == "float") return convert(value, number);
  if (plain == "str") return convert(value, text);
  if (plain == "list of int") return convert(value, integers);
  return convert(value, texts);
}

std::vector<Field> declare_all() {
  std::vector<Field> fields;
  fields.reserve(600);
  declare_training(fields);
  declare_model(fields);
  declare_parallelism(fields);
  declare_experts(fields);
  declare_optimizer(fields);
  declare_data(fields);
  declare_logger(fields);
  declare_checkpoint(fields);
  declare_system(fields);
  declare_precision(fields);
  declare_stored_fields(fields);
  return fields;
}

std::string bound(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return std::to_string(static_cast<std::int64_t>(value));
  const Value number = Value::of_float(value);
  std::string text = to_flow_text(number);
  if (text.size() > 2 && text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

}  // namespace

std::string need_text(Need need) {
  switch (need) {
    case Need::kEffective:
      return "effective";
    case Need::kOneRank:
      return "effective with several ranks";
    case Need::kHint:
      return "hint";
    case Need::kStored:
      return "stored only";
    case Need::kLater:
      return "later";
  }
  return "";
}

Value Field::read(const RunConfig& config) const {
  if (member) return codec->read(member(const_cast<RunConfig&>(config)));
  const auto found = config.stored.find(name);
  return found == config.stored.end() ? default_value : flow_value(found->second);
}

ConversionFault Field::write(RunConfig& config, const Value& value) const {
  std::optional<Value> normal;
  if (normalize != nullptr) normal = normalize(value);
  const Value& source = normal ? *normal : value;
  if (member) {
    if (!choices.empty() && codec->choices.empty() && source.is_string() &&
        std::find(choices.begin(), choices.end(), source.text) == choices.end()) {
      return choice_rule(choices);
    }
    return codec->write(source, member(config));
  }
  if (auto fault = check_stored(*this, source)) return fault;
  if (source == default_value) {
    config.stored.erase(name);
  } else {
    config.stored[name] = to_flow_text(source);
  }
  return std::nullopt;
}

std::string Field::range_text() const {
  if (!choices.empty()) return "one of " + base::join(choices, ", ");
  std::string text;
  if (minimum) text = std::string(minimum_excluded ? "> " : "≥ ") + bound(*minimum);
  if (maximum) text += std::string(text.empty() ? "" : " and ") + (maximum_excluded ? "< " : "≤ ") + bound(*maximum);
  return text;
}

Schema::Schema(std::vector<Field> fields) : fields_(std::move(fields)) {
  index_.reserve(fields_.size());
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const Field& field = fields_[i];
    PHAROS_CHECK(index_.emplace(field.name, i).second, "field declared twice: " + field.name);
    names_.push_back(field.name);
    if (std::find(sections_.begin(), sections_.end(), field.section) == sections_.end())
      sections_.push_back(field.section);
  }
}

const Field* Schema::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &fields_[found->second];
}

bool Schema::is_section(std::string_view name) const {
  return std::find(sections_.begin(), sections_.end(), name) != sections_.end();
}

const Schema& schema() {
  static const Schema kSchema(declare_all());
  return kSchema;
}

std::string canonical_name(const std::string& name) {
  static const std::unordered_map<std::string, std::string> kAliases = {
      {"dataset.sequence_length", "dataset.seq_length"},
      {"model.moe_router_padding_for_fp8", "model.moe_router_padding_for_quantization"},
      {"model.moe_deepep_num_sms", "model.moe_flex_dispatcher_num_sms"},
      {"model.moe_hybridep_num_sms", "model.moe_flex_dispatcher_num_sms"},
      {"train.eval_iters", "validation.eval_iters"},
      {"train.eval_interval", "validation.eval_interval"},
      {"train.skip_train", "validation.skip_train"},
  };
  static constexpr std::string_view kNested = "model.transformer.";
  const std::string plain = name.starts_with(kNested) ? "model." + name.substr(kNested.size()) : name;
  const auto alias = kAliases.find(plain);
  return alias == kAliases.end() ? plain : alias->second;
}

std::string nearest_hint(const std::string& name) {
  const auto last_part = [](std::string_view text) { return text.substr(text.rfind('.') + 1); };
  const std::string section = name.substr(0, name.find('.'));
  const bool in_section = name.size() > section.size() && schema().is_section(section);
  // Edit distances to all names take milliseconds: within a known section only its own names and equal last parts
  // count.
  std::vector<std::string> candidates;
  for (const Field& field : schema().fields()) {
    const auto difference = static_cast<std::ptrdiff_t>(field.name.size()) - static_cast<std::ptrdiff_t>(name.size());
    const bool near = (!in_section || field.section == section) &&
                      std::abs(difference) <= static_cast<std::ptrdiff_t>(name.size() / 3 + 1);
    if (near || last_part(field.name) == last_part(name)) candidates.push_back(field.name);
  }
  if (name.size() > kMaxHintedName) return "";
  const auto nearest = base::nearest_names(name, candidates);
  return nearest.empty() ? "" : "Did you mean " + base::join(nearest, ", ") + "?";
}

void declare_stored(std::vector<Field>& fields, const char* section, const char* name, const char* type,
                    const char* default_text, const char* doc) {
  Field& field = fields.emplace_back();
  field.name = std::string(section) + "." + name;
  field.section = section;
  field.type = type;
  field.doc = doc;
  field.need = Need::kStored;
  field.codec = &stored_codec(type);
  field.default_value = flow_value(default_text);
  set_origin(field.default_value, {});
}

}  // namespace pharos::config
