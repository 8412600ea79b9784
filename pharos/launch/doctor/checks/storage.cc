// Space for what a run writes, and the speed of a folder that all nodes share.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"

namespace pharos::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
constexpr const char* kTemporary = "temporary";

/// What is there of the path: a run folder may not have been made yet.
fs::path existing_part(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored).lexically_normal();
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path;
}

Finding space_finding(const std::string& what, const fs::path& path, std::int64_t least_bytes, Verdict verdict) {
  Finding finding{.check = "disk", .subject = what, .value = path.string()};
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  struct statvfs space {};
  if (!is_folder || ::statvfs(path.c_str(), &space) != 0) {
    finding.value += is_folder                  ? std::string(" cannot be looked at: ") + std::strerror(errno)
                     : !fs::exists(path, error) ? " does not exist"
                                                : " is not a folder";
    finding.verdict = Verdict::kFailure;
    finding.remedy =
        what == kTemporary ? "Make it, or set TMPDIR to another folder." : "Choose a folder this user may write to.";
    return finding;
  }
  const auto free = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
  const bool has_few_files = space.f_files > 0 && space.f_favail < 1000;
  finding.value = base::format_bytes(static_cast<double>(free)) + " free of " +
                  base::format_bytes(static_cast<double>(space.f_blocks * space.f_frsize)) + " (" + path.string() + ")";
  finding.data = {{"path", path.string()}, {"free_bytes", free}};
  const bool is_writable = ::access(path.c_str(), W_OK) == 0;
  if (!is_writable || free < least_bytes || has_few_files) {
    finding.verdict = is_writable ? verdict : Verdict::kFailure;
    if (!is_writable) finding.value += ", cannot be written";
    if (is_writable && has_few_files) finding.value += ", hardly a file more can be made";
    finding.remedy = !is_writable ? "Choose a folder this user may write to."
                                  : "Make room, or choose another folder (pharos plan shows what checkpoints need).";
  }
  return finding;
}

double seconds_since(std::int64_t begin_ns) { return static_cast<double>(base::monotonic_ns() - begin_ns) * 1e-9; }

/// A folder of our own below the shared one, removed at the end.
class Workspace {
 public:
  explicit Workspace(const fs::path& folder) {
    std::string name = (folder / ".pharos_doctor_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error(std::strerror(errno));
    path_ = name;
  }
  ~Workspace() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Finding transfer_finding(const fs::path& folder) {
  constexpr std::size_t kMegabytes = 16;
  constexpr double kSlow = 50;  // MB/s
  const fs::path path = folder / "transfer";
  const std::string block(std::size_t{1} << 20, 'p');
  std::int64_t begin_ns = base::monotonic_ns();
  {
    base::OutputFile file(path);
    for (std::size_t i = 0; i < kMegabytes; ++i) file.write(block);
    file.close();
  }
  const double written = static_cast<double>(kMegabytes << 20) * 1e-6 / seconds_since(begin_ns);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw std::runtime_error(std::strerror(errno));
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);  // so that it comes from the server, where there is one
  begin_ns = base::monotonic_ns();
  std::string buffer(block.size(), '\0');
  std::size_t num_read = 0;
  for (ssize_t count = 0; (count = ::read(descriptor, buffer.data(), buffer.size())) > 0;)
    num_read += static_cast<std::size_t>(count);
  const double read = static_cast<double>(num_read) * 1e-6 / seconds_since(begin_ns);
  ::close(descriptor);
  if (num_read != kMegabytes << 20)
    throw std::runtime_error("a file of 16 MiB came back with " + std::to_string(num_read) + " bytes");
  Finding finding{.check = "shared",
                  .subject = "transfer",
                  .value = "write " + fixed(written, 0) + " MB/s, read " + fixed(read, 0) + " MB/s",
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"write_megabytes_per_s", written}, {"read_megabytes_per_s", read}}};
  if (written < kSlow || read < kSlow) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Checkpoints and data will be waited for: use a faster file system, or local disks for data.";
  }
  return finding;
}

Finding small_files_finding(const fs::path& folder) {
  constexpr int kFiles = 100;
  constexpr double kSlowMs = 10;
  const std::int64_t begin_ns = base::monotonic_ns();
  for (int i = 0; i < kFiles; ++i) {
    const fs::path path = folder / std::to_string(i), renamed = folder / ("renamed_" + std::to_string(i));
    if (!(std::ofstream(path) << i)) throw std::runtime_error("a file could not be made");
    fs::rename(path, renamed);
    if (fs::file_size(renamed) == 0) throw std::runtime_error("a renamed file is empty");
    fs::remove(renamed);
  }
  const double milliseconds = seconds_since(begin_ns) * 1e3 / kFiles;
  Finding finding{.check = "shared",
                  .subject = "small files",
                  .value = fixed(milliseconds, 2) + " ms to make, rename, look at and remove one",
                  .verdict = Verdict::kOk,
                  .remedy = {},
                  .data = {{"milliseconds_per_file", milliseconds}}};
  if (milliseconds > kSlowMs) {
    finding.verdict = Verdict::kWarning;
    finding.remedy = "Start-up and logs of many ranks will be slow: keep caches and logs on a local disk (TMPDIR).";
  }
  return finding;
}

/// A lock by another description of the same file must be seen.
Finding lock_finding(const fs::path& folder) {
  const std::string path = (folder / "lock").string();
  const int first = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  const int second = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const bool is_locked = ::flock(first, LOCK_EX | LOCK_NB) == 0;
  const std::string error = is_locked ? "" : std::strerror(errno);
  const bool is_seen = ::flock(second, LOCK_EX | LOCK_NB) != 0;
  ::close(first);
  ::close(second);
  Finding finding{.check = "shared", .subject = "lock", .value = "works"};
  if (!is_locked || !is_seen) {
    finding.value = is_locked ? "a file can be locked twice" : "a file cannot be locked: " + error;
    finding.verdict = Verdict::kWarning;
    finding.remedy =
        "Two runs could write to one run folder: mount with locks (Lustre: -o flock; NFS: without nolock).";
  }
  return finding;
}

}  // namespace

Findings check_disk(const Node& node) {
  return {space_finding("run folder", existing_part(node.run_folder), 2 * kGibibyte, Verdict::kWarning),
          space_finding(kTemporary, node.temporary_folder, kGibibyte, Verdict::kWarning)};
}

Findings check_shared(const Node& node) {
  if (node.shared_folder.empty()) {
    return {{.check = "shared",
             .subject = {},
             .value = "not tested",
             .verdict = Verdict::kNote,
             .remedy = "Name the folder that all nodes share with --shared."}};
  }
  try {
    if (!fs::is_directory(node.shared_folder)) throw std::runtime_error("it is no folder");
    const Workspace workspace(node.shared_folder);
    return {transfer_finding(workspace.path()), small_files_finding(workspace.path()), lock_finding(workspace.path())};
  } catch (const std::exception& error) {
    return {{.check = "shared",
             .subject = {},
             .value = "'" + node.shared_folder + "' cannot be used: " + error.what(),
             .verdict = Verdict::kFailure,
             .remedy = "Check that it is mounted on this node and that this user may write to it."}};
  }
}

}  // namespace pharos::launch
