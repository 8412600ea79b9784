// Attributes as data: owned copies of what span, metric and log sites were given.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pharos::lens {

/// One of the attribute types of OpenTelemetry: scalars and lists of one scalar type.
using StoredValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                 std::vector<double>, std::vector<std::string>, std::vector<bool>>;

/// In the order they were set first; keys are unique.
using StoredAttributes = std::vector<std::pair<std::string, StoredValue>>;

}  // namespace pharos::lens
