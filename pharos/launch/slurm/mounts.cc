#include "pharos/launch/slurm/mounts.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace fs = std::filesystem;
namespace {

fs::path normal(const fs::path& path) {
  const fs::path clean = path.lexically_normal();
  return clean.has_filename() || clean == clean.root_path() ? clean : clean.parent_path();
}

/// `path` with the folder `from` above it replaced by `to`; nullopt: it is not below `from`.
std::optional<fs::path> moved(const fs::path& path, const fs::path& from, const fs::path& to) {
  const auto [in_path, in_from] = std::mismatch(path.begin(), path.end(), from.begin(), from.end());
  if (in_from != from.end()) return std::nullopt;
  fs::path result = to;
  for (auto part = in_path; part != path.end(); ++part) result /= *part;
  return result;
}

std::vector<std::string> split_flags(const std::string& flags) {
  std::vector<std::string> words;
  std::istringstream text(flags);
  for (std::string word; std::getline(text, word, '+');) words.push_back(word);
  return words;
}

/// Mount options of enroot that a bind mount can have.
bool is_flag(const std::string& word) {
  static const std::set<std::string_view> kFlags = {
      "ro",           "rw",         "exec",        "noexec",        "suid",         "nosuid",
      "dev",          "nodev",      "atime",       "noatime",       "diratime",     "nodiratime",
      "relatime",     "norelatime", "strictatime", "nostrictatime", "lazytime",     "nolazytime",
      "sync",         "async",      "dirsync",     "bind",          "rbind",        "private",
      "rprivate",     "shared",     "rshared",     "slave",         "rslave",       "unbindable",
      "runbindable",  "nofail",     "silent",      "loud",          "x-create=dir", "x-create=file",
      "x-create=auto"};
  return kFlags.contains(word);
}

[[noreturn]] void refuse(std::string_view entry, const std::string& why) {
  throw base::UserError({.what = "The mount '" + std::string(entry) + "' cannot be read: " + why + ".",
                         .where = "--mounts or $MOUNT",
                         .fix = "Write SOURCE:TARGET or SOURCE:TARGET:FLAGS, several with commas between them."});
}

Mount parse_mount(std::string_view entry, const fs::path& folder) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= entry.size();) {
    const std::size_t end = parts.size() == 2 ? entry.size() : std::min(entry.find(':', start), entry.size());
    parts.emplace_back(entry.substr(start, end - start));
    start = end + 1;
  }
  if (parts[0].empty()) refuse(entry, "there is no source");
  Mount mount{.source = normal(folder / parts[0]), .target = {}};
  mount.target = parts.size() > 1 ? normal(parts[1]) : mount.source;
  if (!mount.target.is_absolute()) refuse(entry, "the target is not an absolute path");
  if (parts.size() > 2) mount.flags = parts[2];
  for (const std::string& word : split_flags(mount.flags)) {
    if (!is_flag(word))
      refuse(entry, "there is no flag '" + word +
                        "'; there are ro and rw, and the mount options of enroot with + between them");
  }
  if (mount.text().find(',') != std::string::npos || mount.source.string().find(':') != std::string::npos) {
    throw base::UserError({.what = "The mount of '" + mount.source.string() + "' has a comma or colon in a name.",
                           .where = "--mounts or $MOUNT",
                           .why = "pyxis takes these for the end of a name.",
                           .fix = "Work in a folder of another name, or name other sources in --mounts."});
  }
  return mount;
}

}  // namespace

std::string Mount::text() const { return source.string() + ":" + target.string() + (flags.empty() ? "" : ":" + flags); }

bool Mount::is_read_only() const {
  bool result = false;
  for (const std::string& word : split_flags(flags)) result = word == "ro" || (result && word != "rw");
  return result;
}

std::vector<Mount> parse_mounts(std::string_view text, const fs::path& folder) {
  std::vector<Mount> mounts;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    if (end > start) mounts.push_back(parse_mount(text.substr(start, end - start), folder));
    start = end + 1;
  }
  return mounts;
}

ContainerView::ContainerView(std::vector<Mount> mounts, const fs::path& host_folder) : mounts_(std::move(mounts)) {
  work_folder_ = in_container(host_folder).value_or(fs::path());
}

std::optional<fs::path> ContainerView::in_container(const fs::path& host_path) const {
  const fs::path path = normal(host_path);
  std::optional<fs::path> seen;
  std::size_t longest = 0;
  for (const Mount& mount : mounts_) {
    const auto candidate = moved(path, mount.source, mount.target);
    // What another mount covers is not there under this name.
    if (!candidate || mount.source.native().size() < longest || on_host(*candidate) != path) continue;
    longest = mount.source.native().size();
    seen = candidate;
  }
  return seen;
}

std::optional<fs::path> ContainerView::on_host(const fs::path& container_path) const {
  const Mount* mount = mount_of(container_path);
  if (mount == nullptr) return std::nullopt;
  return moved(normal(work_folder_ / container_path), mount->target, mount->source);
}

const Mount* ContainerView::mount_of(const fs::path& container_path) const {
  if (container_path.is_relative() && work_folder_.empty()) return nullptr;
  const fs::path path = normal(work_folder_ / container_path);
  const Mount* found = nullptr;
  for (const Mount& mount : mounts_) {
    if (!moved(path, mount.target, mount.source)) continue;
    if (found == nullptr || mount.target.native().size() >= found->target.native().size()) found = &mount;
  }
  return found;
}

}  // namespace pharos::launch::slurm
