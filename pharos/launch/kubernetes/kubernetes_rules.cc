#include "pharos/launch/kubernetes/kubernetes_rules.h"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

[[noreturn]] void refuse(const std::string& option, const std::string& what, const std::string& rule) {
  throw base::UserError({.what = what,
                         .where = option,
                         .why = "The cluster would refuse the manifest, or could not start its pods.",
                         .fix = rule});
}

bool matches(std::string_view text, std::size_t most, const char* pattern) {
  return text.size() <= most && std::regex_match(text.begin(), text.end(), std::regex(pattern));
}

/// What a path in a mount must not be: the API server refuses a step back, and a container cannot start otherwise.
void check_mounts(const std::vector<PodMount>& mounts) {
  namespace fs = std::filesystem;
  std::set<std::string> targets;
  for (const PodMount& mount : mounts) {
    const std::string text = mount.source + ":" + mount.target;
    if (mount.is_claim() && !is_dns_subdomain(std::string_view(mount.source).substr(4)))
      refuse("--mounts", "'" + mount.source.substr(4) + "' is no name of a persistent volume claim.",
             "Names have lower-case letters, digits, '-' and '.', and begin and end with a letter or digit.");
    const fs::path source = mount.source;
    if (!mount.is_claim() && std::find(source.begin(), source.end(), "..") != source.end())
      refuse("--mounts", "The source of the mount " + text + " has '..' in it.", "Write the path without '..'.");
    std::string target = fs::path(mount.target).lexically_normal().string();
    while (target.size() > 1 && target.back() == '/') target.pop_back();
    if (target == "/" || target == "/dev/shm")
      refuse("--mounts",
             "The mount " + text + " would hide " + (target == "/" ? "the image" : "the pod's shared memory") + ".",
             target == "/" ? "Mount at a folder below /."
                           : "Mount elsewhere; --k8s-shared-memory says how large /dev/shm is.");
    if (!targets.insert(target).second)
      refuse("--mounts", "Two mounts are at " + target + ".", "Each mount needs a folder of its own in the pod.");
  }
}

}  // namespace

bool is_dns_label(std::string_view text) { return matches(text, 63, "[a-z0-9]([-a-z0-9]*[a-z0-9])?"); }

bool is_dns_subdomain(std::string_view text) {
  return matches(text, 253, R"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)");
}

bool is_label_value(std::string_view text) { return matches(text, 63, "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"); }

bool is_label_key(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return !text.empty() && is_label_value(text);
  const std::string_view name = text.substr(slash + 1);
  return is_dns_subdomain(text.substr(0, slash)) && !name.empty() && is_label_value(name);
}

bool is_byte_quantity(std::string_view text) {
  return matches(text, 32, R"(\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[kMGTPE]|[eE][+-]?[0-9]+)?)") &&
         text.substr(0, text.find_first_of("eE")).find_first_of("123456789") != std::string_view::npos;
}

void check_kubernetes_rules(const JobRequest& request, const KubernetesOptions& options,
                            const std::vector<PodMount>& mounts) {
  const std::string& image = request.container->image;
  if (std::any_of(image.begin(), image.end(), [](unsigned char letter) { return letter <= ' ' || letter == 0x7f; }))
    refuse("--image", "The image '" + image + "' has a blank or control character in its name.",
           "Write [REGISTRY/]NAME[:TAG] or [REGISTRY/]NAME@DIGEST.");
  if (!options.name_space.empty() && !is_dns_label(options.name_space))
    refuse("--k8s-namespace", "'" + options.name_space + "' is no name of a namespace.",
           "Use at most 63 lower-case letters, digits and '-' (RFC 1123), a letter or digit at both ends.");
  if (!options.shared_memory.empty() && !is_byte_quantity(options.shared_memory))
    refuse("--k8s-shared-memory", "'" + options.shared_memory + "' is no amount of memory.",
           "Write a number above 0 with Ki, Mi, Gi, Ti, k, M, G or T behind it, for example 64Gi.");
  for (const auto& [key, value] : options.node_selector) {
    if (is_label_key(key) && is_label_value(value)) continue;
    refuse("--k8s-node-selector", "'" + key + "=" + value + "' is no label of a node.",
           "Write [DOMAIN/]NAME=VALUE; NAME and VALUE have at most 63 letters, digits, '-', '_' and '.', a letter or "
           "digit at both ends.");
  }
  check_mounts(mounts);
}

}  // namespace pharos::launch
