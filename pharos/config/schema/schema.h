// Every field of the configuration, declared once: name, member, documentation, unit, range, and what this release does
// with it. Parsing, overrides, `pharos config fields|explain`, run.yaml and validation all read this table.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/config/schema/codec.h"

namespace pharos::config {

/// What Pharos does with a field that differs from its default.
enum class Need {
  kEffective,  ///< acts
  kOneRank,    ///< acts only with several ranks; noted once on one rank
  kHint,       ///< a kernel choice that Pharos makes itself; noted once
  kStored,     ///< kept in run.yaml, no effect; warned about once
  kLater,      ///< belongs to a capability this release cannot train with; `plan` accepts it, `train` refuses
};

/// "effective", "one rank: no effect", …
std::string need_text(Need need);

struct Field {
  std::string name;     ///< dotted: "train.train_iters"
  std::string section;  ///< "train"; "env_vars" is a section that is itself a field
  std::string type;     ///< "int", "float?", "choice", "list of str", …
  std::string doc;
  std::string unit;                  ///< may be empty
  std::vector<std::string> choices;  ///< closed set of texts; empty when open
  std::optional<double> minimum, maximum;
  bool minimum_excluded = false, maximum_excluded = false;
  bool required = false;
  bool own = false;  ///< not known to Megatron-Bridge
  Need need = Need::kEffective;
  std::string capability;   ///< for kLater: what is missing, "mixture of experts"
  std::string active_with;  ///< field that must be set (neither null nor false) for this one to act; may be empty
  Value default_value;

  const Codec* codec = nullptr;
  std::function<void*(RunConfig&)> member;                    ///< empty for kStored fields
  std::optional<Value> (*normalize)(const Value&) = nullptr;  ///< other accepted spellings; nullopt leaves the value

  Value read(const RunConfig& config) const;
  /// Converts and assigns; on failure nothing changes and the broken rule is returned.
  ConversionFault write(RunConfig& config, const Value& value) const;
  bool nullable() const { return !type.empty() && type.back() == '?'; }
  std::string range_text() const;  ///< "≥ 1", "0 ≤ x < 1", one of …; empty when any value will do
};

class Schema {
 public:
  explicit Schema(std::vector<Field> fields);
  const std::vector<Field>& fields() const { return fields_; }
  /// Field by its name, or nullptr.
  const Field* find(std::string_view name) const;
  bool is_section(std::string_view name) const;
  const std::vector<std::string>& sections() const { return sections_; }
  /// All names, for nearest-name hints.
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<Field> fields_;
  std::vector<std::string> sections_, names_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// The schema of this release (built on first use, below a millisecond).
const Schema& schema();

/// Canonical spelling of a path: `model.transformer.x` → `model.x`, and the aliases of renamed fields.
std::string canonical_name(const std::string& name);

/// "No field model.hiden_size. Nearest: model.hidden_size."-style hint: "Did you mean a, b?" or "" when nothing is
/// near.
std::string nearest_hint(const std::string& name);

}  // namespace pharos::config
