#include "pharos/hf/families/parts/reader.h"

#include <cmath>

namespace pharos::hf {
namespace {

using nlohmann::json;

/// The name, among "a|b", that the object has; the first when it has none.
std::string chosen(const json& object, const std::string& keys) {
  std::string::size_type start = 0;
  while (start <= keys.size()) {
    const auto end = std::min(keys.find('|', start), keys.size());
    const std::string key = keys.substr(start, end - start);
    if (object.contains(key)) return key;
    start = end + 1;
  }
  return keys.substr(0, keys.find('|'));
}

}  // namespace

bool Reader::has(const std::string& keys) const { return object_.contains(chosen(object_, keys)); }

const json* Reader::find(const std::string& keys) const {
  const auto found = object_.find(chosen(object_, keys));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> Reader::whole(const std::string& keys, std::int64_t least, std::int64_t most) {
  const json* value = find(keys);
  if (value == nullptr) return std::nullopt;
  const bool is_whole =
      value->is_number_integer() && (!value->is_number_unsigned() || value->get<std::uint64_t>() < (1ull << 62));
  if (is_whole && value->get<std::int64_t>() >= least && value->get<std::int64_t>() <= most)
    return value->get<std::int64_t>();
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not a whole number from " +
         std::to_string(least) + " to " + std::to_string(most));
  return std::nullopt;
}

std::optional<std::int64_t> Reader::count(const std::string& keys, std::int64_t most) { return whole(keys, 1, most); }

std::optional<std::int64_t> Reader::required_count(const std::string& keys, std::int64_t most) {
  if (find(keys) == nullptr) report(prefix_ + chosen(object_, keys) + " is missing");
  return count(keys, most);
}

std::int64_t Reader::index(const std::string& keys, std::int64_t otherwise, std::int64_t most) {
  return whole(keys, 0, most).value_or(otherwise);
}

double Reader::number(const std::string& keys, double otherwise, bool above_zero) {
  const json* value = find(keys);
  if (value == nullptr) return otherwise;
  const double parsed = value->is_number() ? value->get<double>() : std::nan("");
  if (std::isfinite(parsed) && (above_zero ? parsed > 0 : parsed >= 0)) return parsed;
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not a number " +
         (above_zero ? "above 0" : "from 0"));
  return otherwise;
}

double Reader::between(const std::string& keys, double otherwise, double least, double most) {
  const json* value = find(keys);
  if (value == nullptr) return otherwise;
  const double parsed = value->is_number() ? value->get<double>() : std::nan("");
  if (parsed >= least && parsed <= most) return parsed;
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not a number from " + json(least).dump() +
         " to " + json(most).dump());
  return otherwise;
}

double Reader::dropout(const std::string& keys, double otherwise) {
  const double value = not_negative(keys, otherwise);
  if (value < 1) return value;
  report(prefix_ + chosen(object_, keys) + " = " + find(keys)->dump() + " is not a probability below 1");
  return otherwise;
}

bool Reader::flag(const std::string& keys, bool otherwise) {
  const json* value = find(keys);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not true or false");
  return otherwise;
}

std::string Reader::text(const std::string& keys, const std::string& otherwise) {
  const json* value = find(keys);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not a text");
  return otherwise;
}

void Reader::expect(const std::string& keys, const json& expected) {
  const json* value = find(keys);
  if (value == nullptr || *value == expected) return;
  report(prefix_ + chosen(object_, keys) + " = " + value->dump() + " is not supported (" + expected.dump() + ")");
}

}  // namespace pharos::hf
