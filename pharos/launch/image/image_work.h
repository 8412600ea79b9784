// The steps by which an image is made: commands that run one after another, with progress, in a temporary folder beside
// the result; what is unfinished is removed again.
#pragma once

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "pharos/base/subprocess.h"

namespace pharos::launch {

/// Letters, digits and "._-", not first "." or "-": what a name or tag may hold.
bool is_image_word(const std::string& word);

/// `path` as a word that no program takes for an option or for its standard input: "./" before a leading '-'.
std::string path_word(const std::filesystem::path& path);

class ImageWork {
 public:
  /// `result` appears when finish() is called. In a dry run nothing is made and every command is printed instead.
  /// UserError when the folder of `result` cannot be written.
  ImageWork(std::filesystem::path result, bool is_dry_run, const base::InterruptGuard* guard, std::ostream& progress);
  /// Runs what undo() was given, last first, and removes the temporary folder.
  ~ImageWork();
  ImageWork(const ImageWork&) = delete;
  ImageWork& operator=(const ImageWork&) = delete;

  bool is_dry_run() const { return is_dry_run_; }
  /// A path in the temporary folder.
  std::filesystem::path temporary(const std::string& name) const { return folder_ / name; }
  /// Where the image is to be written before finish().
  std::filesystem::path unfinished_image() const { return temporary("image.sqsh"); }

  /// Runs one step and shows what it prints; UserError that says what failed, with its last lines, and names a full
  /// disk.
  base::CommandResult run(const std::string& title, const std::vector<std::string>& words,
                          const std::filesystem::path& input_file = {});
  /// A step that is no command.
  void note(const std::string& title);
  /// A command to run when this is destroyed, after success as well.
  void undo(std::vector<std::string> words);
  /// Makes the unfinished image of a tar archive, owners as they are in it, and removes the archive.
  void squash_tar(const std::filesystem::path& tar);
  /// The unfinished image becomes `result`, in one step. Prints its size.
  void finish();

 private:
  void fail(const std::string& title, const std::vector<std::string>& words, const base::CommandResult& result) const;

  std::filesystem::path result_;
  std::filesystem::path folder_;
  bool is_dry_run_ = false;
  const base::InterruptGuard* guard_ = nullptr;
  std::ostream& progress_;
  std::vector<std::vector<std::string>> undo_;
  std::int64_t start_ns_ = 0;
};

/// Options of mksquashfs: a compression that costs little and every kernel since 4.14 reads.
std::vector<std::string> squashfs_options();

}  // namespace pharos::launch
