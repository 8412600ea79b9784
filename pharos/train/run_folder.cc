#include "pharos/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::train {

FileLock::FileLock(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  const std::string folder = path.parent_path().string();
  if (descriptor_ < 0) {
    throw base::UserError({.what = "Cannot write to the run folder '" + folder + "': " + std::strerror(errno) + ".",
                           .where = path.string(),
                           .fix = "Choose a folder this user may write to with --run-dir."});
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    throw base::UserError({.what = "Another process is running in '" + folder + "'.",
                           .where = path.string(),
                           .fix = "Wait for it to end or choose another folder with --run-dir."});
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RunFolder::RunFolder(std::filesystem::path path, bool resume) : path_(std::move(path)) {
  if (resume && !std::filesystem::exists(run_yaml())) {
    throw base::UserError(
        {.what = "There is no run to resume in '" + path_.string() + "'.",
         .where = run_yaml().string(),
         .why = "The folder of a run holds its resolved configuration, run.yaml.",
         .fix = "Give the folder of the run with --run-dir, or leave out --resume to start a new one."});
  }
  base::make_directories(path_);
  lock_.emplace(path_ / "lock");
  if (!resume && std::filesystem::exists(run_yaml())) {
    throw base::UserError({.what = "'" + path_.string() + "' already holds a run.",
                           .where = run_yaml().string(),
                           .why = "A new run never continues or overwrites an old one by accident.",
                           .fix = "Add --resume to continue it, or choose another folder with --run-dir."});
  }
}

RunFolder RunFolder::of_peer(std::filesystem::path path) {
  if (!std::filesystem::is_directory(path)) {
    throw base::UserError({.what = "The run folder '" + path.string() + "' is not there on this machine.",
                           .where = path.string(),
                           .why = "Rank 0 has made it; every rank writes its log, its trace and its checkpoints there.",
                           .fix = "Choose a folder on a file system that all machines share with --run-dir."});
  }
  return RunFolder(std::move(path));
}

std::filesystem::path RunFolder::log(std::int64_t rank) const {
  return path_ / (rank == 0 ? "log.txt" : "rank_" + std::to_string(rank) + ".log");
}

std::filesystem::path default_run_folder(const std::string& recipe_name, std::int64_t wall_ns) {
  std::string stamp = base::format_local_time(wall_ns).substr(0, 19);  // YYYY-MM-DD HH:MM:SS
  std::erase_if(stamp, [](char c) { return c == '-' || c == ':'; });
  stamp[8] = '-';
  const std::filesystem::path first = std::filesystem::path("runs") / (recipe_name + "-" + stamp);
  std::filesystem::path path = first;
  for (int i = 2; std::filesystem::exists(path); ++i) path = first.string() + "-" + std::to_string(i);
  return path;
}

std::filesystem::path make_default_run_folder(const std::string& recipe_name, std::int64_t wall_ns) {
  while (true) {
    std::filesystem::path path = default_run_folder(recipe_name, wall_ns);
    base::make_directories(path.parent_path());
    std::error_code error;
    if (std::filesystem::create_directory(path, error)) return path;
    if (error) base::make_directories(path);  // says why
  }
}

}  // namespace pharos::train
