// How the schema_*.cc files declare fields.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pharos/config/schema/schema.h"

namespace pharos::config {

/// Chainable attributes of the field just declared.
class FieldBuilder {
 public:
  explicit FieldBuilder(Field& field) : field_(field) {}
  FieldBuilder& unit(const char* text) { return field_.unit = text, *this; }
  FieldBuilder& min(double value) { return field_.minimum = value, *this; }
  FieldBuilder& above(double value) { return field_.minimum = value, field_.minimum_excluded = true, *this; }
  FieldBuilder& max(double value) { return field_.maximum = value, *this; }
  FieldBuilder& below(double value) { return field_.maximum = value, field_.maximum_excluded = true, *this; }
  FieldBuilder& one_of(std::vector<std::string> choices) { return field_.choices = std::move(choices), *this; }
  FieldBuilder& required() { return field_.required = true, *this; }
  FieldBuilder& own() { return field_.own = true, *this; }
  FieldBuilder& one_rank() { return field_.need = Need::kOneRank, *this; }
  FieldBuilder& hint() { return field_.need = Need::kHint, *this; }
  FieldBuilder& no_effect() { return field_.need = Need::kStored, *this; }
  FieldBuilder& later(const char* capability) {
    field_.need = Need::kLater;
    field_.capability = capability;
    return *this;
  }
  FieldBuilder& with(const char* field) { return field_.active_with = field, *this; }
  FieldBuilder& normalized_by(std::optional<Value> (*normalize)(const Value&)) {
    return field_.normalize = normalize, *this;
  }

 private:
  Field& field_;
};

/// Declares the fields of one section whose struct is a member of RunConfig.
template <typename Section>
class SectionBuilder {
 public:
  SectionBuilder(std::vector<Field>& fields, const char* name, Section RunConfig::*section)
      : fields_(fields), name_(name), section_(section) {}

  template <typename T>
  FieldBuilder field(const char* name, T Section::*member, const char* doc) {
    static const Section kDefaults{};
    Field& field = fields_.emplace_back();
    field.name = name_ + "." + name;
    field.section = name_;
    field.doc = doc;
    field.codec = &codec_of<T>();
    field.type = field.codec->type_name;
    field.choices = field.codec->choices;
    field.default_value = to_value(kDefaults.*member);
    field.member = [section = section_, member](RunConfig& config) -> void* { return &((config.*section).*member); };
    return FieldBuilder(field);
  }

 private:
  std::vector<Field>& fields_;
  std::string name_;
  Section RunConfig::*section_;
};

/// A field that is only stored: checked for its type, kept as text in RunConfig::stored.
/// `type` is a codec name: "bool", "int?", "float", "str?", "list of str", "any".
void declare_stored(std::vector<Field>& fields, const char* section, const char* name, const char* type,
                    const char* default_text, const char* doc);

void declare_model(std::vector<Field>& fields);
void declare_parallelism(std::vector<Field>& fields);
void declare_experts(std::vector<Field>& fields);
void declare_training(std::vector<Field>& fields);
void declare_optimizer(std::vector<Field>& fields);
void declare_data(std::vector<Field>& fields);
void declare_logger(std::vector<Field>& fields);
void declare_checkpoint(std::vector<Field>& fields);
void declare_system(std::vector<Field>& fields);
void declare_precision(std::vector<Field>& fields);
void declare_stored_fields(std::vector<Field>& fields);

}  // namespace pharos::config
