// Typed access to config.json that collects every fault instead of stopping at the first.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/limits.h"

namespace pharos::hf {

/// Reads one JSON object. A key may be given as "a|b": the first one that is there counts.
class Reader {
 public:
  /// `prefix` stands before keys in messages: "rope_parameters.". `object` and `problems` must live longer.
  Reader(const nlohmann::json& object, std::string prefix, std::vector<std::string>& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  void report(const std::string& problem) { problems_.push_back(problem); }
  std::vector<std::string>& problems() { return problems_; }
  const nlohmann::json& object() const { return object_; }

  /// True when the key is there, be it null.
  bool has(const std::string& keys) const;
  /// The value, or null when the key is absent or its value is null.
  const nlohmann::json* find(const std::string& keys) const;

  /// A whole number from 1 to `most`; nullopt when absent, null or wrong (which is reported).
  std::optional<std::int64_t> count(const std::string& keys, std::int64_t most = config::kMostVocabulary);
  /// The same, where absence is reported too.
  std::optional<std::int64_t> required_count(const std::string& keys, std::int64_t most = config::kMostVocabulary);
  /// A whole number from 0 to `most`.
  std::int64_t index(const std::string& keys, std::int64_t otherwise, std::int64_t most = config::kMostVocabulary);
  double positive(const std::string& keys, double otherwise) { return number(keys, otherwise, true); }
  double not_negative(const std::string& keys, double otherwise) { return number(keys, otherwise, false); }
  /// A number from `least` to `most`.
  double between(const std::string& keys, double otherwise, double least, double most);
  /// A probability below 1.
  double dropout(const std::string& keys, double otherwise);
  bool flag(const std::string& keys, bool otherwise);
  std::string text(const std::string& keys, const std::string& otherwise);
  /// Reports "KEY = VALUE is not supported (EXPECTED)" for a value that is there and is not `expected`.
  void expect(const std::string& keys, const nlohmann::json& expected);

 private:
  double number(const std::string& keys, double otherwise, bool above_zero);
  std::optional<std::int64_t> whole(const std::string& keys, std::int64_t least, std::int64_t most);

  const nlohmann::json& object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
};

}  // namespace pharos::hf
