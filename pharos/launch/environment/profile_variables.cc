#include "pharos/launch/environment/profile_variables.h"

#include <string_view>

namespace pharos::launch {
namespace {

struct ProfileVariable {
  const char *profiles, *name, *value, *reason;  ///< profiles: names with blanks between
};

/// Of a rank; the launcher's RANK or, before it is set, SLURM's.
constexpr const char* kCacheFolder = "${TMPDIR:-/tmp}/pharos-cache-rank-${RANK:-${SLURM_PROCID:-0}}/";

// Values for EFA are those of the toolchain Pharos follows; the sources of the reasons are in
// docs/cluster/environment.md.
constexpr ProfileVariable kGpuVariables[] = {
    {"efa", "LD_LIBRARY_PATH",
     "/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib:/opt/aws-ofi-nccl/install/lib:/opt/nccl/"
     "lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",
     "The plug-in of aws-ofi-nccl, EFA's libfabric and the NCCL they were built for are found before others of the "
     "system."},
    {"efa", "FI_PROVIDER", "efa",
     "libfabric takes the EFA provider and fails where there is none, instead of taking TCP without a word."},
    {"efa", "FI_EFA_USE_DEVICE_RDMA", "1",
     "A device without RDMA stops the run at its start; unset, libfabric would copy through the host without a word."},
    {"efa", "FI_EFA_FORK_SAFE", "1",
     "A process that forks after communication began keeps its registered memory intact (Linux before 5.13 or "
     "rdma-core "
     "before 38; no effect with newer ones)."},
    {"efa", "NCCL_NET_PLUGIN", "libnccl-net-ofi.so",
     "NCCL takes its network from aws-ofi-nccl, that is from libfabric."},
    {"efa", "NCCL_TUNER_PLUGIN", "libnccl-tuner-ofi.so",
     "Algorithm and protocol of a collective are chosen by what was measured on EFA, not by NCCL's model of "
     "InfiniBand."},
    {"ib", "NCCL_NET", "IB",
     "A node whose InfiniBand cannot be used stops with an error; NCCL would take sockets without a word."},
    {"tcp", "NCCL_NET", "Socket", "NCCL takes sockets at once and looks for no other network."},
    {"efa ib tcp", "NCCL_SOCKET_IFNAME", "^lo,docker,veth",
     "Ranks meet over an interface that the other nodes reach, not over the bridge of a container."},
    {"efa ib tcp", "NCCL_DEBUG", "WARN", "An error of NCCL comes with its cause in the log, and nothing else does."},
    {"efa", "NCCL_BUFFSIZE", "8388608",
     "8 MiB instead of 4 MiB a channel: EFA's latency is hidden by larger messages (the plug-in's own value on P5)."},
    {"efa", "NCCL_P2P_NET_CHUNKSIZE", "524288",
     "512 KiB instead of 128 KiB a message of send and receive, for the same cause."},
    {"efa", "NCCL_GIN_TYPE", "2",
     "Device-initiated transfers go through a thread of the host (proxy); kernel-initiated ones (3) need InfiniBand."},
    {"efa", "DEEP_EP_BACKEND", "nccl",
     "A DeepEP in the same job uses NCCL, as NVSHMEM's own transport needs InfiniBand; Pharos does not read it."},
    {"efa ib tcp", "CUDA_DEVICE_MAX_CONNECTIONS", "1",
     "Kernels start in the order of the program, so that a collective starts before the computation that hides it."},
};

constexpr ProfileVariable kCacheFolders[] = {
    {"efa ib tcp", "CUDA_CACHE_PATH", "cuda",
     "Ranks do not lock and overwrite each other's compiled kernels (CUDA driver) in a shared home folder."},
    {"efa ib tcp", "PYTORCH_KERNEL_CACHE_PATH", "torch", "The same for kernels that libtorch compiles."},
    {"efa ib tcp", "TRITON_CACHE_DIR", "triton",
     "The same for Triton in a Python program of the same task; Pharos does not read it."},
    {"efa ib tcp", "TORCHINDUCTOR_CACHE_DIR", "inductor",
     "The same for torch.compile in a Python program of the same task; Pharos does not read it."},
    {"efa ib tcp", "TORCH_EXTENSIONS_DIR", "extensions",
     "The same for extensions that a Python program of the same task builds; Pharos does not read it."},
};

/// SLURM_CPUS_PER_TASK, but never more than a rank's share of the step: in an allocation it may be said of one task of
/// salloc, in whose CPUs several ranks run.
std::string threads_of_rank() {
  const std::string asked = "${SLURM_CPUS_PER_TASK:-1}", ranks = "${SLURM_NTASKS:-1}";
  const std::string cpus = "${SLURM_CPUS_ON_NODE:-1} * ${SLURM_NNODES:-1}";
  return "$((" + asked + " * " + ranks + " <= " + cpus + " ? " + asked + " : " + ranks + " < " + cpus + " ? " + cpus +
         " / " + ranks + " : 1))";
}

}  // namespace

std::vector<PlannedVariable> profile_variables(NetworkProfile profile, bool uses_gpus) {
  std::vector<PlannedVariable> variables;
  const auto add = [&](const auto& table, const std::string& before) {
    for (const ProfileVariable& variable : table) {
      if (std::string_view(variable.profiles).find(name_of(profile)) == std::string_view::npos) continue;
      variables.push_back({.name = variable.name,
                           .value = before + variable.value,
                           .reason = variable.reason,
                           .source = VariableSource::kProfile,
                           .origin = "profile " + std::string(name_of(profile))});
    }
  };
  if (uses_gpus) add(kGpuVariables, "");
  if (uses_gpus) add(kCacheFolders, kCacheFolder);
  const std::string threads = threads_of_rank();
  const ProfileVariable of_all[] = {
      {"efa ib tcp", "OMP_NUM_THREADS", threads.c_str(),
       "Ranks of a node share its cores: without it each starts as many threads as there are cores."}};
  add(of_all, "");
  return variables;
}

}  // namespace pharos::launch
