// Span groups: the switches that decide which span sites record: the sixteen of Megatron (megatron-telemetry.md section
// 2) and those a program registers (lens.md section 4.3).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::lens {

/// A span belongs to one group; groups are switched on and off together by the bit of the same number. Values from 16
/// on come from register_group().
enum class Group : std::uint8_t {
  kJob,
  kCheckpoint,
  kEvaluate,
  kModelInit,
  kLoadCheckpoint,
  kStep,
  kForwardBackward,
  kOptimizer,
  kMicrobatch,
  kLayer,
  kCommunication,
  kActivationOffload,
  kDataLoading,
  kFirstIteration,
  kTraceRegion,
  kInference,
};

/// Groups that are always there, and how many there can be with registered ones.
inline constexpr int kNumGroups = 16;
inline constexpr int kMaxGroups = 63;

/// One bit per group.
using GroupMask = std::uint64_t;

constexpr GroupMask group_bit(Group group) { return GroupMask{1} << static_cast<int>(group); }

/// Every group there can be.
inline constexpr GroupMask kAllGroups = (GroupMask{1} << kMaxGroups) - 1;

/// Name as in specifications: "job", "forward_backward", …; "unknown" for a value that was never registered.
std::string_view group_name(Group group);

/// The group of that exact name.
std::optional<Group> find_group(std::string_view name);

/// Adds a group of the program's own. It belongs to `profiling` and `all`, and to those of `default` and `per_step`
/// that are named in `presets` (`default` implies `per_step`). Call it in one place before the first specification is
/// parsed:
///
///     const lens::Group kRollout = lens::register_group("rollout", {"per_step"});
///
/// A second call with the same name returns the same group. A name that is not lower-case snake_case or that is a
/// preset's, an unknown preset and a 48th group are an InternalError. Any thread.
Group register_group(std::string_view name, std::initializer_list<std::string_view> presets = {});

/// A named set of groups: "default", "per_step", "profiling", "all"; default ⊆ per_step ⊆ profiling = all.
struct GroupPreset {
  std::string_view name;
  GroupMask mask;
};
std::vector<GroupPreset> group_presets();

/// Set of groups meant by `specification`: names of groups and presets separated by commas; blanks around names and
/// case do not matter, empty items are skipped, the result is the union (lens.md section 4.2). Empty means no group.
/// An unknown name is a UserError with the nearest and all valid names; `where` tells the user where it stands.
GroupMask parse_groups(std::string_view specification, const std::string& where = "");

/// The names of the groups in `mask` in the order of their numbers, joined by commas.
std::string format_groups(GroupMask mask);

}  // namespace pharos::lens
