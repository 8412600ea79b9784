// The layer between sources (recipes, command line) and typed fields: the latest value of every field that was set,
// still untyped, because ${...} may refer to what a later source sets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "pharos/config/overrides/override_parser.h"
#include "pharos/config/overrides/value.h"
#include "pharos/config/problem.h"

namespace pharos::config {

class Assignments {
 public:
  /// Merges a `config:` mapping (sections of fields; dotted keys allowed). Unknown names become problems.
  void merge(const Value& config, std::vector<Problem>& problems);
  /// Applies one override to what is there.
  void apply(const Override& override, std::vector<Problem>& problems);
  /// Value of a field that was set, or nullptr.
  const Value* find(const std::string& field) const;
  const std::map<std::string, Value>& values() const { return values_; }
  /// Sentences about old spellings that were understood.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void assign(const std::string& name, const Value& value, std::vector<Problem>& problems, int depth);
  void assign_section(const std::string& section, const Value& value, std::vector<Problem>& problems, int depth);
  void assign_inside(const std::vector<std::string>& path, std::size_t field_parts, const Override& override,
                     std::vector<Problem>& problems);
  void remove(const std::vector<std::string>& path, const Override& override, std::vector<Problem>& problems);
  Value current(const std::string& field) const;

  std::map<std::string, Value> values_;
  std::vector<std::string> notes_;
};

/// Problem of a name no field has; with the nearest names when `with_hint`.
Problem unknown_name(const std::string& name, const std::string& origin, bool with_hint);

}  // namespace pharos::config
