// Attributes that outlive the call they were passed to.
#pragma once

#include <string_view>

#include "pharos/lens/attribute.h"
#include "pharos/lens/data/stored_value.h"

namespace pharos::lens::internal {

/// An owned copy; a value of type kNone becomes empty text.
StoredValue to_stored(const AttributeValue& value);

/// Sets `key`, in its place if it is there already.
void put_stored_attribute(StoredAttributes& attributes, std::string_view key, StoredValue value);

}  // namespace pharos::lens::internal
