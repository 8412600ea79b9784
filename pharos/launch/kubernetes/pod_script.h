// The shell script of a pod: starts the ranks of its node and waits for them.
#pragma once

#include <string>

#include "pharos/launch/cluster/job_request.h"
#include "pharos/launch/kubernetes/kubernetes_manifest.h"

namespace pharos::launch {

/// A POSIX shell script. Expects RANK (of the pod) and MASTER_ADDR in the environment as the training operator sets
/// them, or JOB_COMPLETION_INDEX as the Job of a JobSet has it. Gives each rank RANK, LOCAL_RANK, WORLD_SIZE,
/// LOCAL_WORLD_SIZE, MASTER_PORT and request.environment, and --resume once there is a run.yaml. When a rank fails, the
/// others of the pod get SIGTERM 5 s (30 s after code 4) later and SIGKILL 15 s after that. Leaves with 0 or the code
/// of the first failure, but with 2 when any rank said so; under PyTorchJob one that should be tried again (3, 4, 16)
/// becomes 138, as its operator retries only codes above 127.
std::string pod_script(const JobRequest& request, KubernetesKind kind);

}  // namespace pharos::launch
