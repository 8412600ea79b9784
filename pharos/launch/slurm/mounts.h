// Which folders of this machine a container shows, and under what names.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch::slurm {

struct Mount {
  std::filesystem::path source;  ///< absolute
  std::filesystem::path target;  ///< absolute, in the container
  std::string flags = {};        ///< "ro", or several with `+` between them

  bool is_read_only() const;
  /// "SOURCE:TARGET[:FLAGS]", as pyxis reads it.
  std::string text() const;
};

/// "SOURCE:TARGET[:FLAGS],…" or "SOURCE" for the same name inside; a source may be relative to `folder`. UserError for
/// what is neither, a relative target, or a flag that enroot does not know.
std::vector<Mount> parse_mounts(std::string_view text, const std::filesystem::path& folder);

/// Names of one file system in the other. Of several mounts that cover a path the longest one counts.
class ContainerView {
 public:
  /// `mounts` as parsed, `host_folder` the working folder here. Tasks work in the folder it is seen as, or in `/`.
  ContainerView(std::vector<Mount> mounts, const std::filesystem::path& host_folder);

  /// nullopt: no mount shows it.
  std::optional<std::filesystem::path> in_container(const std::filesystem::path& host_path) const;
  /// A path as a task gives it, relative to its working folder or absolute; nullopt: it is no mount's.
  std::optional<std::filesystem::path> on_host(const std::filesystem::path& container_path) const;
  /// Of the mounts that show a path as a task gives it the one that counts; null: none does.
  const Mount* mount_of(const std::filesystem::path& container_path) const;
  /// Where tasks work: host_folder as they see it; empty: it is not there.
  const std::filesystem::path& work_folder() const { return work_folder_; }

 private:
  std::vector<Mount> mounts_;
  std::filesystem::path work_folder_;
};

}  // namespace pharos::launch::slurm
