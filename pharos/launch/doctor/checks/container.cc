// Which container this is, and whether what it should see is there and can be written.
#include <unistd.h>

#include <sstream>

#include "pharos/launch/doctor/checks.h"

namespace pharos::launch {
namespace {

struct Mount {
  std::string source, target, type, options;
};

std::vector<Mount> read_mounts(const Node& node) {
  std::vector<Mount> mounts;
  std::istringstream lines(node.read("/proc/self/mounts").value_or(""));
  for (std::string text; std::getline(lines, text);) {
    Mount mount;
    std::istringstream(text) >> mount.source >> mount.target >> mount.type >> mount.options;
    mounts.push_back(mount);
  }
  return mounts;
}

std::string container_name(const Node& node, const std::vector<Mount>& mounts) {
  if (!node.variable("KUBERNETES_SERVICE_HOST").empty()) return "Kubernetes pod";
  if (!node.variable("ENROOT_ROOTFS").empty()) return "enroot";
  if (!node.variable("APPTAINER_NAME").empty() || !node.variable("SINGULARITY_NAME").empty()) return "Apptainer";
  if (node.exists("/run/.containerenv")) return "podman";
  if (node.exists("/.dockerenv")) return "docker";
  if (const std::string name = node.variable("container"); !name.empty()) return name;
  for (const Mount& mount : mounts) {
    if (mount.target == "/" && (mount.type == "overlay" || mount.type == "squashfs"))
      return "a container (its root is " + mount.type + ")";
  }
  return "none";
}

bool is_shared_type(const std::string& type) {
  for (const char* name : {"nfs", "nfs4", "lustre", "fuse.", "ceph", "beegfs", "gpfs", "wekafs", "9p", "virtiofs"}) {
    if (type.starts_with(name)) return true;
  }
  return false;
}

bool is_read_only(const Mount& mount) { return ("," + mount.options + ",").find(",ro,") != std::string::npos; }

/// "SOURCE:TARGET[:FLAGS],…", as `pharos launch` takes it from $MOUNT.
Findings wanted_mounts(const Node& node) {
  Findings findings;
  std::istringstream list(node.variable("MOUNT"));
  for (std::string entry; std::getline(list, entry, ',');) {
    const auto first = entry.find(':'), second = entry.find(':', first + 1);
    if (first == std::string::npos) continue;
    const std::string target = entry.substr(first + 1, second == std::string::npos ? second : second - first - 1);
    const bool wants_write = second == std::string::npos || entry.substr(second + 1).find("ro") == std::string::npos;
    Finding finding{.check = "container", .subject = target, .value = "mounted"};
    if (!node.exists(target)) {
      finding.value = "missing, though MOUNT has " + entry;
      finding.verdict = Verdict::kFailure;
      finding.remedy = "Check that the source is on this node, and --container-mounts.";
    } else if (wants_write && ::access(node.path(target).c_str(), W_OK) != 0) {
      finding.value = "cannot be written";
      finding.verdict = Verdict::kFailure;
      finding.remedy =
          "Mount it without `ro`, and give this user (number " + std::to_string(::getuid()) + ") the right to write.";
    }
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace

Findings check_container(const Node& node) {
  const std::vector<Mount> mounts = read_mounts(node);
  const std::string name = container_name(node, mounts);
  Findings findings{{.check = "container",
                     .subject = {},
                     .value = name,
                     .verdict = Verdict::kOk,
                     .remedy = {},
                     .data = {{"container", name}}}};
  for (const Mount& mount : mounts) {
    if (!is_shared_type(mount.type)) continue;
    findings.push_back({.check = "container",
                        .subject = mount.target,
                        .value = mount.type + " from " + mount.source + (is_read_only(mount) ? ", read-only" : ""),
                        .verdict = Verdict::kOk,
                        .remedy = {},
                        .data = {{"type", mount.type}, {"read_only", is_read_only(mount)}}});
  }
  // Inside a container the mounts it was asked for must be there; outside they are not yet.
  if (name != "none") {
    for (Finding& finding : wanted_mounts(node)) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace pharos::launch
