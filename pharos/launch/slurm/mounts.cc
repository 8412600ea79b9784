#include "pharos/launch/slurm/mounts.h"

#include <algorithm>

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
  if (container_path.is_relative() && work_folder_.empty()) return std::nullopt;
  const fs::path path = normal(work_folder_ / container_path);
  std::optional<fs::path> found;
  std::size_t longest = 0;
  for (const Mount& mount : mounts_) {
    const auto candidate = moved(path, mount.target, mount.source);
    if (!candidate || mount.target.native().size() < longest) continue;
    longest = mount.target.native().size();
    found = candidate;
  }
  return found;
}

}  // namespace pharos::launch::slurm
