#include "pharos/hf/transfer/new_folder.h"

#include <unistd.h>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/checkpoint/folder.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;

/// Absolute, without links and without a slash at the end, whether it exists or not.
fs::path plain(const fs::path& path) {
  std::error_code error;
  const fs::path absolute =
      fs::absolute(path);  // weakly_canonical() leaves a relative path that does not exist as it is
  fs::path result = fs::weakly_canonical(absolute, error);
  if (error) result = absolute.lexically_normal();
  return result.filename().empty() ? result.parent_path() : result;
}

}  // namespace

NewFolder::NewFolder(const fs::path& target, bool replaces, bool (*is_replaceable)(const fs::path&))
    : target_(plain(target)), replaces_(replaces) {
  std::error_code error;
  const bool is_there = fs::exists(fs::symlink_status(target_, error));  // also a link to nothing
  const bool is_folder = fs::is_directory(target_, error);
  const bool is_free = !is_there || (is_folder && fs::is_empty(target_, error) && !error);
  if (!is_free && !(replaces && is_folder && is_replaceable(target_))) {
    throw base::UserError(
        {.what = "'" + target_.string() + (is_folder ? "' is not empty." : "' is not a folder."),
         .where = target_.string(),
         .why =
             replaces ? "--force replaces an earlier result only, and this is none." : "What is in it would be lost.",
         .fix = replaces ? "Name another folder." : "Name another folder, or replace it by --force."});
  }
  const fs::path parent = target_.parent_path();
  base::make_directories(parent);
  temporary_ = parent / (target_.filename().string() + ".tmp." + std::to_string(::getpid()));
  checkpoint::remove_leftovers_of(target_);
  base::make_directories(temporary_);
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void NewFolder::finish() {
  base::sync_directory(temporary_);
  if (replaces_) {
    checkpoint::move_into_place(temporary_, target_);
  } else {
    checkpoint::move_to_free_place(temporary_, target_);
  }
  temporary_.clear();
}

void check_apart(const fs::path& target, const std::vector<fs::path>& sources) {
  const fs::path place = plain(target);
  for (const fs::path& source : sources) {
    const fs::path inside = plain(source).lexically_relative(place);
    if (inside.empty() || *inside.begin() == "..") continue;
    throw base::UserError(
        {.what = "'" + target.string() + "' cannot be written to: it holds '" + source.string() + "'.",
         .where = target.string(),
         .why = "It would be replaced while it is read.",
         .fix = "Name another folder."});
  }
}

void copy_file(const fs::path& from, const fs::path& to) {
  const base::MappedFile file(from);
  base::OutputFile copy(to);
  copy.write(file.data(), file.size_bytes());
  copy.close();
}

}  // namespace pharos::hf
