#include "pharos/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string_view>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::train {

FileLock::FileLock(const std::filesystem::path& path) : descriptor_(base::open_regular_file(path, O_RDWR | O_CREAT)) {
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor_);
    throw base::UserError({.what = "Another process is running in '" + path.parent_path().string() + "'.",
                           .where = path.string(),
                           .fix = "Wait for it to end or choose another folder with --run-dir."});
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace {

bool has_bytes(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return !error && size > 0;
}

/// Temporary files of write_file_atomically(). Whoever holds the lock knows that their writers are gone.
void remove_left_over(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> left_over;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    for (const std::string_view written : {"run.yaml.tmp.", "metrics.jsonl.tmp."}) {
      const bool is_one = name.starts_with(written) && name.size() > written.size() &&
                          name.find_first_not_of("0123456789", written.size()) == std::string::npos;
      if (is_one) left_over.push_back(entry.path());
    }
  }
  for (const auto& path : left_over) ::unlink(path.c_str());
}

}  // namespace

bool holds_run(const std::filesystem::path& folder) {
  std::error_code error;
  const auto status = std::filesystem::status(folder / "run.yaml", error);
  if (!std::filesystem::exists(status)) return false;
  if (!std::filesystem::is_regular_file(status) || has_bytes(folder / "run.yaml")) return true;
  const auto checkpoints = std::filesystem::directory_iterator(folder / "checkpoints", error);
  return has_bytes(folder / "metrics.jsonl") || (!error && checkpoints != std::filesystem::directory_iterator());
}

void require_run(const std::filesystem::path& folder) {
  if (holds_run(folder)) return;
  std::error_code error;
  const std::filesystem::path run_yaml = folder / "run.yaml";
  const char* fault = !std::filesystem::exists(folder, error)     ? "The folder does not exist."
                      : !std::filesystem::exists(run_yaml, error) ? "run.yaml is missing."
                                                                  : "run.yaml is empty.";
  throw base::UserError({.what = "There is no run to resume in '" + folder.string() + "': no run began there.",
                         .where = run_yaml.string(),
                         .why = std::string(fault) + " A run begins when its set-up is done and run.yaml is written.",
                         .fix = "Start the run with its recipe and without --resume, or give the folder of another "
                                "run with --run-dir."});
}

RunFolder::RunFolder(std::filesystem::path path, bool resume) : path_(std::move(path)) {
  if (resume) require_run(path_);
  base::make_directories(path_);
  lock_.emplace(path_ / "lock");
  remove_left_over(path_);
  if (!resume && holds_run(path_)) {
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
