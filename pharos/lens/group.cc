#include "pharos/lens/group.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {
namespace {

constexpr std::array<std::string_view, kNumGroups> kBuiltinNames = {
    "job",          "checkpoint", "evaluate", "model_init",    "load_checkpoint",    "step",         "forward_backward",
    "optimizer",    "microbatch", "layer",    "communication", "activation_offload", "data_loading", "first_iteration",
    "trace_region", "inference",
};

constexpr GroupMask kBuiltin = (GroupMask{1} << kNumGroups) - 1;
constexpr GroupMask kDefault = group_bit(Group::kJob) | group_bit(Group::kCheckpoint) | group_bit(Group::kEvaluate) |
                               group_bit(Group::kFirstIteration) | group_bit(Group::kInference);
constexpr GroupMask kPerStep = kBuiltin & ~(group_bit(Group::kMicrobatch) | group_bit(Group::kLayer) |
                                            group_bit(Group::kActivationOffload) | group_bit(Group::kTraceRegion));

/// All groups of the process. Names are never removed: views of them stay valid.
class Registry {
 public:
  Registry() {
    for (const std::string_view name : kBuiltinNames) names_[num_names_++] = name;
  }

  std::vector<std::string> names() const {
    const std::lock_guard lock(mutex_);
    return {names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(num_names_)};
  }
  std::string_view name(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    return index < num_names_ ? std::string_view(names_[index]) : "unknown";
  }
  std::optional<Group> find(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    return find_locked(name);
  }
  std::vector<GroupPreset> presets() const {
    const std::lock_guard lock(mutex_);
    const GroupMask all = (GroupMask{1} << num_names_) - 1;
    return {{"default", default_}, {"per_step", per_step_}, {"profiling", all}, {"all", all}};
  }

  Group add(std::string_view name, bool is_default, bool is_per_step) {
    const std::lock_guard lock(mutex_);
    if (const std::optional<Group> known = find_locked(name)) return *known;
    if (num_names_ == names_.size())
      throw base::InternalError("there are 47 registered span groups, the most there can be");
    const auto group = static_cast<Group>(num_names_);
    names_[num_names_++] = name;
    if (is_default) default_ |= group_bit(group);
    if (is_default || is_per_step) per_step_ |= group_bit(group);
    return group;
  }

 private:
  std::optional<Group> find_locked(std::string_view name) const {
    const auto end = names_.begin() + static_cast<std::ptrdiff_t>(num_names_);
    const auto found = std::find(names_.begin(), end, name);
    if (found == end) return std::nullopt;
    return static_cast<Group>(found - names_.begin());
  }

  mutable std::mutex mutex_;
  std::array<std::string, kMaxGroups> names_;
  std::size_t num_names_ = 0;
  GroupMask default_ = kDefault;
  GroupMask per_step_ = kPerStep;
};

/// Never destroyed: spans may still be decoded while the process exits.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

std::string normalized(std::string_view item) {
  const auto is_blank = [](unsigned char letter) { return std::isspace(letter) != 0; };
  while (!item.empty() && is_blank(item.front())) item.remove_prefix(1);
  while (!item.empty() && is_blank(item.back())) item.remove_suffix(1);
  std::string text(item);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

[[noreturn]] void fail_unknown(const std::string& item, const std::string& where) {
  std::vector<std::string> known = registry().names();
  for (const GroupPreset& preset : group_presets()) known.emplace_back(preset.name);
  std::sort(known.begin(), known.end());
  const std::vector<std::string> nearest = base::nearest_names(item, known);
  std::string fix = nearest.empty() ? "" : "Did you mean " + base::join(nearest, " or ") + "? ";
  fix += "Valid are " + base::join(known, ", ") + "; separate several by commas.";
  throw base::UserError({.what = "Unknown span group \"" + shown(item) + "\".", .where = where, .fix = fix});
}

GroupMask find_item(const std::string& item, const std::string& where) {
  for (const GroupPreset& preset : group_presets()) {
    if (preset.name == item) return preset.mask;
  }
  const std::optional<Group> group = find_group(item);
  if (!group) fail_unknown(item, where);
  return group_bit(*group);
}

bool is_preset(std::string_view name) {
  const std::vector<GroupPreset> presets = group_presets();
  return std::any_of(presets.begin(), presets.end(), [name](const GroupPreset& preset) { return preset.name == name; });
}

/// Lower-case snake_case, as specifications are lower-cased before they are looked up.
bool is_valid_name(std::string_view name) {
  const auto is_letter = [](char letter) { return letter >= 'a' && letter <= 'z'; };
  return !name.empty() && is_letter(name.front()) && std::all_of(name.begin(), name.end(), [&](char letter) {
    return is_letter(letter) || letter == '_' || (letter >= '0' && letter <= '9');
  });
}

}  // namespace

std::string_view group_name(Group group) { return registry().name(static_cast<std::size_t>(group)); }

std::optional<Group> find_group(std::string_view name) { return registry().find(name); }

Group register_group(std::string_view name, std::initializer_list<std::string_view> presets) {
  const std::string text(name);
  if (!is_valid_name(name) || is_preset(name)) {
    throw base::InternalError("\"" + text + "\" cannot be the name of a span group");
  }
  bool is_default = false;
  bool is_per_step = false;
  for (const std::string_view preset : presets) {
    if (!is_preset(preset)) {
      throw base::InternalError("span group " + text + ": there is no preset \"" + std::string(preset) + "\"");
    }
    is_default |= preset == "default";
    is_per_step |= preset == "per_step";
  }
  return registry().add(name, is_default, is_per_step);
}

std::vector<GroupPreset> group_presets() { return registry().presets(); }

GroupMask parse_groups(std::string_view specification, const std::string& where) {
  GroupMask mask = 0;
  while (true) {
    const std::size_t comma = specification.find(',');
    const std::string item = normalized(specification.substr(0, comma));
    if (!item.empty()) mask |= find_item(item, where);
    if (comma == std::string_view::npos) return mask;
    specification.remove_prefix(comma + 1);
  }
}

std::string format_groups(GroupMask mask) {
  const std::vector<std::string> known = registry().names();
  std::vector<std::string> names;
  for (std::size_t group = 0; group < known.size(); ++group) {
    if ((mask >> group) & 1) names.push_back(known[group]);
  }
  return base::join(names, ",");
}

}  // namespace pharos::lens
