// What the pods of a job see, and whether the files of its configuration are among it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/launch/cluster/named_paths.h"

namespace pharos::launch {

struct PodMount {
  std::string source;  ///< "/PATH" of every node, or "pvc/CLAIM"
  std::string target;  ///< absolute, in the pod
  bool is_read_only = false;

  bool is_claim() const { return source.starts_with("pvc/"); }
  /// Whether `path` of a pod lies in it.
  bool shows(const std::filesystem::path& path) const;
};

/// "/PATH:/TARGET" or "pvc/CLAIM:/TARGET", with ":ro" or ":rw" behind it. UserError for all else.
PodMount parse_pod_mount(const std::string& text);

/// Of several mounts that show `path` the innermost; null: none does.
const PodMount* mount_of(const std::vector<PodMount>& mounts, const std::filesystem::path& path);

/// Where a folder that all nodes have keeps `path` of a pod; empty: it is a claim's, or in no mount.
std::filesystem::path path_on_node(const std::vector<PodMount>& mounts, const std::filesystem::path& path);

struct PodPathFindings {
  std::vector<base::UserError::Parts> problems;  ///< in no mount
  std::vector<std::string> unseen;               ///< "field = path" in a mount that this machine does not see it in
};

/// Weights, data, tokenizer and a recipe file by path, as a pod gives them. A name in the image's own files cannot be
/// told from a wrong one: all must be in a mount.
PodPathFindings check_pod_paths(const config::ResolvedConfig& resolved, const std::string& recipe,
                                const std::vector<PodMount>& mounts);

}  // namespace pharos::launch
