// The one folder a run owns: run.yaml, log.txt, metrics.jsonl, rank_N.log, trace/, checkpoints/ (architecture.md 4).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace pharos::train {

/// An advisory lock on a file, held until the end of this object (or of the process, however it ends).
class FileLock {
 public:
  /// UserError when the file cannot be made or another process holds the lock.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;

 private:
  int descriptor_;
};

/// Whether a run began in `folder`: it has run.yaml. An empty one counts only with steps or checkpoints beside it.
bool holds_run(const std::filesystem::path& folder);
/// UserError, which says what is missing, unless holds_run(folder).
void require_run(const std::filesystem::path& folder);

class RunFolder {
 public:
  /// Opens `path` for a new run, or with `resume` for one that is there. UserError when a new run would overwrite one,
  /// when there is nothing to resume, when the folder cannot be written, or when another process is using it. Removes
  /// what an atomic write left there whose process was killed.
  RunFolder(std::filesystem::path path, bool resume);
  /// The folder as another rank of the same job sees it, after rank 0 has opened it. UserError when it is not there:
  /// the ranks' machines do not share the file system.
  static RunFolder of_peer(std::filesystem::path path);
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path run_yaml() const { return path_ / "run.yaml"; }
  /// log.txt of rank 0, rank_N.log of the others.
  std::filesystem::path log(std::int64_t rank = 0) const;
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path trace() const { return path_ / "trace"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;
  std::optional<FileLock> lock_;
};

/// runs/NAME-YYYYMMDD-HHMMSS, with a further number when that exists.
std::filesystem::path default_run_folder(const std::string& recipe_name, std::int64_t wall_ns);
/// The same, and made by this call: of processes that ask in the same second each gets its own. UserError when it
/// cannot be made.
std::filesystem::path make_default_run_folder(const std::string& recipe_name, std::int64_t wall_ns);

}  // namespace pharos::train
