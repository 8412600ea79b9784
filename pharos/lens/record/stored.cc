#include "pharos/lens/record/stored.h"

#include <string>
#include <utility>
#include <vector>

namespace pharos::lens::internal {

StoredValue to_stored(const AttributeValue& value) {
  switch (value.type()) {
    case AttributeValue::Type::kBool:
      return value.as_bool();
    case AttributeValue::Type::kInteger:
      return value.as_integer();
    case AttributeValue::Type::kDouble:
      return value.as_double();
    case AttributeValue::Type::kText:
      return std::string(value.as_text());
    case AttributeValue::Type::kIntegers:
      return std::vector<std::int64_t>(value.as_integers().begin(), value.as_integers().end());
    case AttributeValue::Type::kDoubles:
      return std::vector<double>(value.as_doubles().begin(), value.as_doubles().end());
    case AttributeValue::Type::kTexts: {
      std::vector<std::string> texts;
      for (std::size_t i = 0; i < value.size(); ++i) texts.emplace_back(value.text_at(i));
      return texts;
    }
    case AttributeValue::Type::kBools: {
      std::vector<bool> flags;
      for (std::size_t i = 0; i < value.size(); ++i) flags.push_back(value.bool_at(i));
      return flags;
    }
    case AttributeValue::Type::kNone:
      break;
  }
  return std::string();
}

void put_stored_attribute(StoredAttributes& attributes, std::string_view key, StoredValue value) {
  for (auto& [known, stored] : attributes) {
    if (known != key) continue;
    stored = std::move(value);
    return;
  }
  attributes.emplace_back(key, std::move(value));
}

}  // namespace pharos::lens::internal
