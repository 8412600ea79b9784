// Span groups: the sixteen switches that decide which span sites record (megatron-telemetry.md section 2).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::lens {

/// A span belongs to one group; groups are switched on and off together by the bit of the same number.
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

inline constexpr int kNumGroups = 16;

/// One bit per group.
using GroupMask = std::uint64_t;

constexpr GroupMask group_bit(Group group) { return GroupMask{1} << static_cast<int>(group); }

/// Name as in specifications: "job", "forward_backward", …
std::string_view group_name(Group group);

/// A named set of groups: "default", "per_step", "profiling", "all"; default ⊆ per_step ⊆ profiling = all.
struct GroupPreset {
  std::string_view name;
  GroupMask mask;
};
const std::vector<GroupPreset>& group_presets();

/// Set of groups meant by `specification`: names of groups and presets separated by commas; blanks around names and
/// case do not matter, empty items are skipped, the result is the union (lens.md section 4.2). Empty means no group.
/// An unknown name is a UserError with the nearest and all valid names; `where` tells the user where it stands.
GroupMask parse_groups(std::string_view specification, const std::string& where = "");

/// The names of the groups in `mask` in the order of the enum, joined by commas.
std::string format_groups(GroupMask mask);

}  // namespace pharos::lens
