// A job as an object of Kubernetes: a PyTorchJob of Kubeflow's training operator or a JobSet.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "pharos/launch/cluster/job_request.h"

namespace pharos::launch {

enum class KubernetesKind : std::uint8_t {
  kPyTorchJob,  ///< kubeflow.org/v1, training operator 1.x
  kJobSet,      ///< jobset.x-k8s.io/v1alpha2
};

/// UserError naming "pytorchjob" and "jobset" when `name` is neither.
KubernetesKind parse_kubernetes_kind(std::string_view name);

/// What only Kubernetes asks for.
struct KubernetesOptions {
  KubernetesKind kind = KubernetesKind::kPyTorchJob;
  std::string name_space = {};                    ///< empty: that of whoever applies the manifest
  std::optional<std::int64_t> efa_per_node = {};  ///< devices vpc.amazonaws.com/efa of a pod; needed with profile efa
  std::string shared_memory = {};                 ///< most of /dev/shm, "64Gi"; empty: half of the node's memory
  std::int64_t grace_seconds = 300;               ///< from SIGTERM to SIGKILL: time to save a checkpoint
  std::int64_t max_restarts = 3;                  ///< of a JobSet; a PyTorchJob does not limit them
  std::map<std::string, std::string> node_selector;  ///< labels that a node must have
};

/// The manifest as YAML, one document. One pod a node; its shell script starts a process for each GPU, passes signals
/// on and leaves with the code of the first that failed (docs/cluster/kubernetes.md).
///
/// Of `request`: container.image is required. A mount is "/PATH:TARGET" (host path) or "pvc/CLAIM:TARGET" (persistent
/// volume claim), with ":ro" or ":rw" behind it; run_folder must lie in a TARGET, as a pod's own files end with it.
/// UserError: any of this is not so, a name has control characters, --nsys is asked for, EFA devices are not counted or
/// counted where no rank uses them, or the API server would refuse a name, label, amount or mount.
std::string kubernetes_manifest(const JobRequest& request, const KubernetesOptions& options);

/// A name that objects and host names may have (RFC 1123 and 1035, with room for what controllers append): lower-case
/// letters, digits and `-`, a letter first, at most 40 characters. A longer one ends in a hash of the whole.
std::string kubernetes_name(std::string_view name);

}  // namespace pharos::launch
