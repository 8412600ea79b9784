#include "pharos/launch/kubernetes/kubernetes_manifest.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/launch/kubernetes/kubernetes_rules.h"
#include "pharos/launch/kubernetes/pod_mounts.h"
#include "pharos/launch/kubernetes/pod_script.h"
#include "pharos/launch/kubernetes/yaml_text.h"

namespace pharos::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLabel = "pharos-job";
constexpr std::size_t kMostNameCharacters = 40;  // of 63, less "-worker-9999" or "-node-0-9999-abcde"

[[noreturn]] void refuse(std::string what, std::string fix, std::string why = "") {
  throw base::UserError({.what = std::move(what), .where = "--k8s", .why = std::move(why), .fix = std::move(fix)});
}

void check(const JobRequest& request, const KubernetesOptions& options, const std::vector<PodMount>& mounts) {
  if (request.uses_nsys) {
    refuse("--nsys is not carried over to Kubernetes.", "Leave it out, or run the profile on SLURM.",
           "A pod's script starts the ranks as they are.");
  }
  const bool uses_efa = request.environment.profile == NetworkProfile::kEfa && request.uses_gpus;
  if (uses_efa && !options.efa_per_node) {
    refuse("Profile efa needs the number of EFA devices of a node.",
           "Give it: 32 on p5, 16 on p5en, 8 on p6-b200, 4 on p4d; 0 for none.",
           "A pod sees only devices that it asked for as vpc.amazonaws.com/efa.");
  }
  if (!uses_efa && options.efa_per_node.value_or(0) > 0) {
    throw base::UserError(
        {.what = std::to_string(*options.efa_per_node) + " EFA devices are asked for, but no rank uses them.",
         .where = "--k8s-efa",
         .why = request.uses_gpus ? "The network profile is not efa." : "The ranks are on CPUs.",
         .fix = "Leave it out, or train on GPUs with --profile efa."});
  }
  check_kubernetes_rules(request, options, mounts);
  const std::filesystem::path run_folder =
      (std::filesystem::path(request.container->work_folder) / request.run_folder).lexically_normal();
  const bool is_kept = std::any_of(mounts.begin(), mounts.end(), [&](const PodMount& mount) {
    return !mount.is_read_only && mount.shows(run_folder);
  });
  if (!is_kept) {
    refuse("The run folder " + run_folder.string() + " is in no mount that can be written.",
           "Mount a folder that all nodes share and give a --run-dir below it.",
           "Checkpoints would end with the pod, and another node would not see them.");
  }
}

/// `$(` and `$$` mean something to Kubernetes in args; a doubled `$` stands for itself.
std::string without_expansion(const std::string& script) {
  std::string text;
  for (std::size_t i = 0; i < script.size(); ++i) {
    text += script[i];
    if (script[i] == '$' && i + 1 < script.size() && (script[i + 1] == '(' || script[i + 1] == '$')) text += '$';
  }
  return text;
}

Json volumes_of(const std::vector<PodMount>& mounts, const KubernetesOptions& options) {
  Json memory = {{"medium", "Memory"}};
  if (!options.shared_memory.empty()) memory["sizeLimit"] = options.shared_memory;
  Json volumes = Json::array({{{"name", "shared-memory"}, {"emptyDir", memory}}});
  for (std::size_t i = 0; i < mounts.size(); ++i) {
    Json volume = {{"name", "mount-" + std::to_string(i)}};
    if (mounts[i].is_claim()) {
      volume["persistentVolumeClaim"] = {{"claimName", mounts[i].source.substr(4)}};
    } else {
      volume["hostPath"] = {{"path", mounts[i].source}, {"type", "Directory"}};
    }
    volumes.push_back(volume);
  }
  return volumes;
}

Json mounts_of(const std::vector<PodMount>& mounts) {
  Json list = Json::array({{{"name", "shared-memory"}, {"mountPath", "/dev/shm"}}});
  for (std::size_t i = 0; i < mounts.size(); ++i) {
    Json mount = {{"name", "mount-" + std::to_string(i)}, {"mountPath", mounts[i].target}};
    if (mounts[i].is_read_only) mount["readOnly"] = true;
    list.push_back(mount);
  }
  return list;
}

Json container_of(const JobRequest& request, const KubernetesOptions& options, const std::vector<PodMount>& mounts) {
  Json container = {{"name", "pytorch"},  // the operator looks for a container of this name
                    {"image", request.container->image},
                    {"command", {"/bin/sh", "-c"}},
                    {"args", Json::array({without_expansion(pod_script(request, options.kind))})}};
  if (!request.container->work_folder.empty()) container["workingDir"] = request.container->work_folder;
  container["ports"] = Json::array({{{"name", "pytorchjob-port"}, {"containerPort", request.master_port}}});
  Json devices = Json::object();
  if (request.uses_gpus) devices["nvidia.com/gpu"] = request.gpus_per_node;
  if (options.efa_per_node.value_or(0) > 0) devices["vpc.amazonaws.com/efa"] = *options.efa_per_node;
  if (!devices.empty()) container["resources"] = {{"requests", devices}, {"limits", devices}};
  container["securityContext"] = {{"capabilities", {{"add", {"IPC_LOCK"}}}}};
  container["volumeMounts"] = mounts_of(mounts);
  container["terminationMessagePolicy"] = "FallbackToLogsOnError";
  return container;
}

Json pod_of(const std::string& name, const JobRequest& request, const KubernetesOptions& options,
            const std::vector<PodMount>& mounts) {
  const Json labels = {{kLabel, name}};
  Json spec = Json::object();
  if (options.kind == KubernetesKind::kJobSet) spec["restartPolicy"] = "Never";
  spec["terminationGracePeriodSeconds"] = options.grace_seconds;
  if (!options.node_selector.empty()) spec["nodeSelector"] = options.node_selector;
  const Json apart = {{"labelSelector", {{"matchLabels", labels}}}, {"topologyKey", "kubernetes.io/hostname"}};
  spec["affinity"] = {{"podAntiAffinity", {{"requiredDuringSchedulingIgnoredDuringExecution", Json::array({apart})}}}};
  if (request.uses_gpus) {
    spec["tolerations"] = Json::array({{{"key", "nvidia.com/gpu"}, {"operator", "Exists"}, {"effect", "NoSchedule"}}});
  }
  spec["containers"] = Json::array({container_of(request, options, mounts)});
  spec["volumes"] = volumes_of(mounts, options);
  return {{"metadata", {{"labels", labels}}}, {"spec", spec}};
}

Json metadata_of(const std::string& name, const JobRequest& request, const KubernetesOptions& options) {
  Json metadata = {{"name", name}};
  if (!options.name_space.empty()) metadata["namespace"] = options.name_space;
  metadata["labels"] = {{kLabel, name}};
  metadata["annotations"] = {{"pharos-job-name", request.name}};
  return metadata;
}

Json pytorch_job(const Json& metadata, const Json& pod, std::int64_t num_nodes) {
  const auto replicas = [&](std::int64_t count) {
    return Json{{"replicas", count}, {"restartPolicy", "ExitCode"}, {"template", pod}};
  };
  Json roles = {{"Master", replicas(1)}};
  if (num_nodes > 1) roles["Worker"] = replicas(num_nodes - 1);
  return {{"apiVersion", "kubeflow.org/v1"},
          {"kind", "PyTorchJob"},
          {"metadata", metadata},
          {"spec", {{"runPolicy", {{"cleanPodPolicy", "Running"}}}, {"pytorchReplicaSpecs", roles}}}};
}

Json job_set(const Json& metadata, const Json& pod, std::int64_t num_nodes, std::int64_t max_restarts) {
  const Json not_again = {
      {"action", "FailJob"},
      {"onExitCodes", {{"containerName", "pytorch"}, {"operator", "In"}, {"values", {1, 2, 17, 126, 127}}}}};
  const Json job = {{"parallelism", num_nodes},
                    {"completions", num_nodes},
                    {"completionMode", "Indexed"},
                    {"backoffLimit", 0},
                    {"podFailurePolicy", {{"rules", Json::array({not_again})}}},
                    {"template", pod}};
  const Json give_up = {
      {"name", "userError"}, {"action", "FailJobSet"}, {"onJobFailureReasons", Json::array({"PodFailurePolicy"})}};
  return {{"apiVersion", "jobset.x-k8s.io/v1alpha2"},
          {"kind", "JobSet"},
          {"metadata", metadata},
          {"spec",
           {{"network", {{"enableDNSHostnames", true}}},
            {"failurePolicy", {{"maxRestarts", max_restarts}, {"rules", Json::array({give_up})}}},
            {"replicatedJobs", Json::array({{{"name", "node"}, {"replicas", 1}, {"template", {{"spec", job}}}}})}}}};
}

}  // namespace

KubernetesKind parse_kubernetes_kind(std::string_view name) {
  if (name == "pytorchjob") return KubernetesKind::kPyTorchJob;
  if (name == "jobset") return KubernetesKind::kJobSet;
  refuse("There is no manifest of kind '" + std::string(name) + "'.",
         "Name pytorchjob or jobset; --k8s alone is pytorchjob if it stands behind the recipe.");
}

std::string kubernetes_name(std::string_view name) {
  std::string result;
  for (const char character : name) {
    const char lower = character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a') : character;
    const bool is_allowed = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (is_allowed || (!result.empty() && result.back() != '-')) result += is_allowed ? lower : '-';
  }
  while (!result.empty() && result.back() == '-') result.pop_back();
  if (result.empty() || result.front() < 'a') result = result.empty() ? "pharos" : "job-" + result;
  if (result.size() <= kMostNameCharacters) return result;
  std::uint32_t hash = 2166136261u;  // FNV-1a, 32 bits
  for (const char character : name) hash = (hash ^ static_cast<unsigned char>(character)) * 16777619u;
  char suffix[16];
  std::snprintf(suffix, sizeof suffix, "-%08x", hash);
  result.resize(kMostNameCharacters - 9);
  while (result.back() == '-') result.pop_back();
  return result + suffix;
}

std::string kubernetes_manifest(const JobRequest& request, const KubernetesOptions& options) {
  if (!request.container || request.container->image.empty())
    refuse("A pod needs an image.", "Give the reference of one in a registry that the nodes can pull from.");
  std::vector<PodMount> mounts;
  for (const std::string& text : request.container->mounts) mounts.push_back(parse_pod_mount(text));
  check(request, options, mounts);
  const std::string name = kubernetes_name(request.name);
  const Json metadata = metadata_of(name, request, options);
  const Json pod = pod_of(name, request, options, mounts);
  return to_yaml(options.kind == KubernetesKind::kPyTorchJob
                     ? pytorch_job(metadata, pod, request.num_nodes)
                     : job_set(metadata, pod, request.num_nodes, options.max_restarts));
}

}  // namespace pharos::launch
