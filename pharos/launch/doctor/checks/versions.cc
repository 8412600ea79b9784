// Versions of everything whose mixture decides whether a job runs.
#include <gnu/libc-version.h>

#include "pharos/launch/doctor/checks.h"
#include "pharos/launch/doctor/library.h"
#include "pharos/launch/doctor/network/provider.h"

namespace pharos::launch {
namespace {

Finding line(const std::string& what, const std::string& version, const std::string& path = {}) {
  Finding finding{.check = "versions", .subject = what, .value = version + (path.empty() ? "" : " (" + path + ")")};
  finding.data = {{"version", version}};
  if (!path.empty()) finding.data["path"] = path;
  return finding;
}

Finding library_line(const std::string& what, const LoadedLibrary& library, const std::string& version) {
  if (!library.is_loaded()) {
    Finding missing = line(what, "not found");
    missing.verdict = Verdict::kNote;
    return missing;
  }
  return line(what, version.empty() ? "unknown" : version, library.path);
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  …" → "570.86.15"
std::string version_of_driver(const Node& node) {
  if (const auto version = node.read("/sys/module/nvidia/version")) return *version;
  const std::string text = node.read("/proc/driver/nvidia/version").value_or("");
  const std::string key = "Kernel Module  ";
  const auto begin = text.find(key);
  if (begin == std::string::npos) return {};
  return text.substr(begin + key.size(), text.find(' ', begin + key.size()) - begin - key.size());
}

}  // namespace

Findings check_versions(const Node& node) {
  Findings findings;
  for (const auto& [what, version] : node.versions.items()) findings.push_back(line(what, version.get<std::string>()));
  findings.push_back(line("kernel", node.read("/proc/sys/kernel/osrelease").value_or("unknown")));
  findings.push_back(line("glibc", ::gnu_get_libc_version()));
  if (const std::string driver = version_of_driver(node); !driver.empty())
    findings.push_back(line("NVIDIA driver", driver));
  for (const char* module : {"efa", "gdrdrv", "mlx5_core"}) {
    if (const auto version = node.read(std::string("/sys/module/") + module + "/version"))
      findings.push_back(line(std::string("module ") + module, *version));
  }
  const LoadedLibrary nccl = load_library({"libnccl.so.2"});
  findings.push_back(library_line("NCCL", nccl, version_of_nccl(nccl)));
  const LoadedLibrary fabric = load_library({"libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"});
  findings.push_back(library_line("libfabric", fabric, version_of_libfabric(fabric)));
  const LoadedLibrary plugin = load_library(plugin_names(node.variable("NCCL_NET_PLUGIN")));
  findings.push_back(library_line("NCCL plug-in", plugin, ""));
  return findings;
}

}  // namespace pharos::launch
