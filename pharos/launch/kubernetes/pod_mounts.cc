#include "pharos/launch/kubernetes/pod_mounts.h"

#include <algorithm>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

namespace fs = std::filesystem;

fs::path normal(const fs::path& path) {
  const fs::path clean = path.lexically_normal();
  return clean.has_filename() || clean == clean.root_path() ? clean : clean.parent_path();
}

/// The remedy for a path that no mount shows.
std::string remedy_for_hidden(const NamedPath& named, const std::vector<PodMount>& mounts) {
  if (fs::path(named.path).is_relative())
    return "Pods have no common working folder: give an absolute path in a mount.";
  for (const PodMount& mount : mounts) {
    const PodMount reversed{.source = mount.target, .target = mount.source};
    if (mount.is_claim() || !reversed.shows(named.path)) continue;
    const fs::path inside = path_on_node({reversed}, named.path);
    return "In a pod it is " + inside.string() + ": write " + named.field + "=" + inside.string() + ".";
  }
  const fs::path path = normal(named.path);
  const std::string folder = (named.kind == PathKind::kFolder ? path : path.parent_path()).string();
  return "Add the mount " + folder + ":" + folder + " (or pvc/CLAIM:" + folder + ") to --mounts.";
}

}  // namespace

bool PodMount::shows(const fs::path& path) const {
  const fs::path clean = normal(path);
  const fs::path folder = normal(target);
  return std::mismatch(folder.begin(), folder.end(), clean.begin(), clean.end()).first == folder.end();
}

PodMount parse_pod_mount(const std::string& text) {
  const std::size_t first = text.find(':');
  const std::size_t second = first == std::string::npos ? first : text.find(':', first + 1);
  PodMount mount{.source = text.substr(0, first),
                 .target = first == std::string::npos ? "" : text.substr(first + 1, second - first - 1)};
  const std::string flag = second == std::string::npos ? "" : text.substr(second + 1);
  mount.is_read_only = flag == "ro";
  const bool is_source = mount.source.starts_with("/") || (mount.is_claim() && mount.source.size() > 4);
  if (is_source && mount.target.starts_with("/") && (flag.empty() || flag == "ro" || flag == "rw")) return mount;
  throw base::UserError(
      {.what = "Cannot mount '" + text + "' in a pod.",
       .where = "--k8s",
       .why = "Nodes have no common working folder, so a source that is no absolute path means nothing there.",
       .fix = "Write /PATH:/TARGET for a folder of every node or pvc/CLAIM:/TARGET for a persistent volume claim, with "
              ":ro behind it for reading only."});
}

const PodMount* mount_of(const std::vector<PodMount>& mounts, const fs::path& path) {
  const PodMount* found = nullptr;
  for (const PodMount& mount : mounts) {
    if (mount.shows(path) && (found == nullptr || mount.target.size() >= found->target.size())) found = &mount;
  }
  return found;
}

fs::path path_on_node(const std::vector<PodMount>& mounts, const fs::path& path) {
  const PodMount* const mount = mount_of(mounts, path);
  if (mount == nullptr || mount->is_claim()) return {};
  return normal(fs::path(mount->source) / normal(path).lexically_relative(normal(mount->target)));
}

PodPathFindings check_pod_paths(const config::ResolvedConfig& resolved, const std::string& recipe,
                                const std::vector<PodMount>& mounts) {
  PodPathFindings findings;
  std::vector<NamedPath> paths = paths_of(resolved.config);
  if (is_recipe_path(recipe)) paths.push_back({.field = "recipe", .path = recipe, .kind = PathKind::kFile});
  for (const NamedPath& named : paths) {
    const std::string text = named.field + " = " + named.path;
    if (fs::path(named.path).is_relative() || mount_of(mounts, named.path) == nullptr) {
      findings.problems.push_back({.what = text + " is in no mount of the pods.",
                                   .where = named.field == "recipe" ? "command line" : where_from(resolved, named),
                                   .fix = remedy_for_hidden(named, mounts)});
      continue;
    }
    const fs::path here = path_on_node(mounts, named.path);
    if (here.empty() || !is_there(here, named.kind)) findings.unseen.push_back(text);
  }
  return findings;
}

}  // namespace pharos::launch
