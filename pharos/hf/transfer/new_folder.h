// A folder that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pharos::hf {

/// Files are written into path(), a temporary folder beside `target`, which takes its place in finish(); without that
/// the destructor removes it.
class NewFolder {
 public:
  /// `target` may be missing or empty. With `replaces` it may hold what `is_replaceable` says it does (an earlier
  /// result), never anything else. UserError otherwise, and when the place cannot be written to. Removes what killed
  /// processes left beside it.
  NewFolder(const std::filesystem::path& target, bool replaces, bool (*is_replaceable)(const std::filesystem::path&));
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  /// Every file must have been synced. UserError when the folder cannot be renamed, or without `replaces` when another
  /// process has written to the target since the construction.
  void finish();

 private:
  std::filesystem::path target_, temporary_;
  bool replaces_;
};

/// UserError when `target` is one of `sources` or holds one of them: it would be replaced while it is read.
void check_apart(const std::filesystem::path& target, const std::vector<std::filesystem::path>& sources);

/// Copies one file and syncs it. UserError.
void copy_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace pharos::hf
