#include "pharos/lens/group.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::lens {
namespace {

constexpr std::array<std::string_view, kNumGroups> kNames = {
    "job",          "checkpoint", "evaluate", "model_init",    "load_checkpoint",    "step",         "forward_backward",
    "optimizer",    "microbatch", "layer",    "communication", "activation_offload", "data_loading", "first_iteration",
    "trace_region", "inference",
};

constexpr GroupMask kAll = (GroupMask{1} << kNumGroups) - 1;
constexpr GroupMask kDefault = group_bit(Group::kJob) | group_bit(Group::kCheckpoint) | group_bit(Group::kEvaluate) |
                               group_bit(Group::kFirstIteration) | group_bit(Group::kInference);
constexpr GroupMask kPerStep = kAll & ~(group_bit(Group::kMicrobatch) | group_bit(Group::kLayer) |
                                        group_bit(Group::kActivationOffload) | group_bit(Group::kTraceRegion));

std::string normalized(std::string_view item) {
  const auto is_blank = [](unsigned char letter) { return std::isspace(letter) != 0; };
  while (!item.empty() && is_blank(item.front())) item.remove_prefix(1);
  while (!item.empty() && is_blank(item.back())) item.remove_suffix(1);
  std::string text(item);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return text;
}

[[noreturn]] void fail_unknown(const std::string& item, const std::string& where) {
  std::vector<std::string> known(kNames.begin(), kNames.end());
  for (const GroupPreset& preset : group_presets()) known.emplace_back(preset.name);
  std::sort(known.begin(), known.end());
  const std::vector<std::string> nearest = base::nearest_names(item, known);
  std::string fix = nearest.empty() ? "" : "Did you mean " + base::join(nearest, " or ") + "? ";
  fix += "Valid are " + base::join(known, ", ") + "; separate several by commas.";
  throw base::UserError({.what = "Unknown span group \"" + item + "\".", .where = where, .fix = fix});
}

GroupMask find_item(const std::string& item, const std::string& where) {
  for (const GroupPreset& preset : group_presets()) {
    if (preset.name == item) return preset.mask;
  }
  const auto found = std::find(kNames.begin(), kNames.end(), item);
  if (found == kNames.end()) fail_unknown(item, where);
  return GroupMask{1} << (found - kNames.begin());
}

}  // namespace

std::string_view group_name(Group group) { return kNames.at(static_cast<std::size_t>(group)); }

const std::vector<GroupPreset>& group_presets() {
  static const std::vector<GroupPreset> presets = {
      {"default", kDefault}, {"per_step", kPerStep}, {"profiling", kAll}, {"all", kAll}};
  return presets;
}

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
  std::vector<std::string> names;
  for (int group = 0; group < kNumGroups; ++group) {
    if ((mask >> group) & 1) names.emplace_back(kNames[static_cast<std::size_t>(group)]);
  }
  return base::join(names, ",");
}

}  // namespace pharos::lens
