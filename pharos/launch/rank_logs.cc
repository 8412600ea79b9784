#include "pharos/launch/rank_logs.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/untrusted/printable.h"
#include "pharos/base/untrusted/regular_file.h"

namespace pharos::launch {
namespace {

constexpr std::int64_t kTailBytes = 256 << 10;
constexpr std::size_t kMaxLineBytes = 400;

std::int64_t size_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

struct stat status_of(const std::filesystem::path& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) status = {};
  return status;
}

/// The folders that make_directories(`folder`) would make, innermost first.
std::vector<std::filesystem::path> missing_folders(std::filesystem::path folder) {
  std::vector<std::filesystem::path> missing;
  std::error_code error;
  for (; !folder.empty() && !std::filesystem::exists(folder, error); folder = folder.parent_path()) {
    missing.push_back(folder);
  }
  return missing;
}

/// Whether `path` still names the open file; another job may have removed it meanwhile.
bool is_same_file(int descriptor, const std::filesystem::path& path) {
  struct stat open = {}, named = {};
  return fstat(descriptor, &open) == 0 && stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

std::string printable(std::string_view line) { return base::printable(base::shortened(line, kMaxLineBytes)); }

std::vector<std::string> last_lines(const LogPart& part, std::size_t limit) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(part.path, error)) return {};  // opening a pipe would wait
  const std::int64_t size = size_of(part.path);
  const std::int64_t begin = part.begin_bytes <= size ? part.begin_bytes : 0;  // shorter than before: written anew
  std::ifstream file(part.path, std::ios::binary);
  const std::int64_t from = std::max(begin, size - kTailBytes);
  file.seekg(from);
  std::deque<std::string> lines;
  std::string line;
  if (from > begin) std::getline(file, line);  // its beginning is missing
  while (std::getline(file, line)) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (line.empty()) continue;
    lines.push_back(line);
    if (lines.size() > limit) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

RankLogs::RankLogs(std::filesystem::path folder, std::int64_t num_ranks)
    : folder_(std::move(folder)),
      new_folders_(missing_folders(folder_)),
      run_yaml_before_(status_of(folder_ / "run.yaml")) {
  base::make_directories(folder_);
  parts_.push_back({.path = folder_ / "log.txt"});
  for (std::int64_t rank = 1; rank < num_ranks; ++rank) {
    parts_.push_back({.path = folder_ / ("rank_" + std::to_string(rank) + ".log")});
    try {
      files_.push_back(open_log(parts_.back().path));
    } catch (const base::UserError&) {
      for (const File& file : files_) close(file.descriptor);
      throw;
    }
  }
}

RankLogs::~RankLogs() {
  for (const File& file : files_) close(file.descriptor);
}

RankLogs::File RankLogs::open_log(const std::filesystem::path& path) const {
  while (true) {
    File file;
    file.is_new = !std::filesystem::exists(path);
    file.descriptor = base::open_regular_file(path, O_WRONLY | O_CREAT | O_APPEND);
    if (flock(file.descriptor, LOCK_EX | LOCK_NB) != 0) {
      close(file.descriptor);
      throw base::UserError({.what = "Another job is running in '" + folder_.string() + "'.",
                             .where = path.string(),
                             .fix = "Wait for it to end or choose another folder with --run-dir."});
    }
    file.bytes_before = size_of(path);
    if (is_same_file(file.descriptor, path)) return file;
    close(file.descriptor);
  }
}

void RankLogs::begin_attempt(std::int64_t attempt) {
  for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
    if (rank > 0) {
      const std::string line = "--- attempt " + std::to_string(attempt) + ", rank " + std::to_string(rank) + " of " +
                               std::to_string(parts_.size()) + ", " + base::format_local_time(base::wall_ns()) + "\n";
      if (write(files_[rank - 1].descriptor, line.data(), line.size()) < 0) {
        throw base::UserError(
            {.what = "Cannot write to '" + parts_[rank].path.string() + "': " + std::strerror(errno) + ".",
             .where = parts_[rank].path.string(),
             .fix = "Make room on the disk or choose another folder with --run-dir."});
      }
    }
    parts_[rank].begin_bytes = size_of(parts_[rank].path);
  }
}

int RankLogs::descriptor(std::int64_t rank) const {
  return rank == 0 ? -1 : files_[static_cast<std::size_t>(rank - 1)].descriptor;
}

bool RankLogs::has_run_begun() const {
  const struct stat now = status_of(folder_ / "run.yaml");
  return now.st_ino != run_yaml_before_.st_ino || now.st_mtim.tv_sec != run_yaml_before_.st_mtim.tv_sec ||
         now.st_mtim.tv_nsec != run_yaml_before_.st_mtim.tv_nsec;
}

void RankLogs::withdraw() {
  std::error_code ignored;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].is_new) {
      std::filesystem::remove(parts_[i + 1].path, ignored);
    } else if (ftruncate(files_[i].descriptor, files_[i].bytes_before) != 0) {
      continue;  // the lines stay: they say the truth
    }
  }
  for (const std::filesystem::path& folder : new_folders_) std::filesystem::remove(folder, ignored);  // only if empty
}

}  // namespace pharos::launch
