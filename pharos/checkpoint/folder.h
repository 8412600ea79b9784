// Folders of checkpoints: names, the tracker file, finding one to load, keeping the last N, removing what killed saves
// left behind (bridge-config.md 6.1, 6.4, 6.5). Knows no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::checkpoint {

inline constexpr const char* kTrackerFile = "latest_checkpointed_iteration.txt";

/// "iter_0000100".
std::string iteration_folder_name(std::int64_t iteration);
/// The inverse, or nullopt for any other name.
std::optional<std::int64_t> iteration_of_folder_name(std::string_view name);

/// True when `folder` has a readable manifest and every file it lists, in full size. Reads no tensor.
bool is_complete(const std::filesystem::path& folder);

/// Iterations of the complete checkpoints in `save`, ascending.
std::vector<std::int64_t> complete_iterations(const std::filesystem::path& save);

struct Found {
  std::filesystem::path folder;
  std::vector<std::string> warnings;  ///< for people: what was passed over, and why
};

/// The checkpoint to load from `path`: a folder of checkpoints (by `step` if given, else by its tracker file) or one
/// checkpoint. A tracker that is damaged, missing, or points at nothing complete falls back to the newest complete
/// checkpoint, with a warning. Returns nullopt when there is none. UserError for a `step` that is not there, for a
/// foreign format (which is named), and for checkpoints that are all damaged.
std::optional<Found> find_checkpoint(const std::filesystem::path& path,
                                     std::optional<std::int64_t> step = std::nullopt);

/// Names the foreign format in `folder` ("Megatron torch_dist", …), or an empty text.
std::string foreign_format(const std::filesystem::path& folder);

/// Points the tracker at `iteration`, atomically.
void write_tracker(const std::filesystem::path& save, std::int64_t iteration);

/// "iter_0000100.tmp.PID", where a save is written before it is renamed.
std::string temporary_folder_name(std::int64_t iteration, std::int64_t writer);

/// Removes temporary folders and files of savers that no longer run on this machine.
void remove_leftovers(const std::filesystem::path& save);

/// The same for TARGET.tmp.PID and TARGET.old.tmp.PID beside `target` (absolute) alone.
void remove_leftovers_of(const std::filesystem::path& target);

/// Puts the finished `temporary` folder in place of `target`, which may exist (then it is replaced).
void move_into_place(const std::filesystem::path& temporary, const std::filesystem::path& target);

/// Puts the finished folder `temporary` where nothing is yet, or an empty folder. UserError when something has appeared
/// there: of two processes at once the second fails.
void move_to_free_place(const std::filesystem::path& temporary, const std::filesystem::path& target);

/// Removes all but the `most_recent_k` newest checkpoints (-1 keeps all), never one of `keep`. Returns what was
/// removed. most_recent_k must not be 0.
std::vector<std::filesystem::path> remove_old_checkpoints(const std::filesystem::path& save, std::int64_t most_recent_k,
                                                          const std::vector<std::filesystem::path>& keep);

}  // namespace pharos::checkpoint
