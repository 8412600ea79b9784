// Attributes of the sending process, with the keys and types of nemo-lens and Megatron (lens.md section 9,
// megatron-telemetry.md section 4.5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/lens/data/stored_value.h"
#include "pharos/lens/setup/lens_config.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// Position in one dimension of parallelism.
struct Place {
  int rank = 0;
  int size = 1;
};

struct RankCoordinates {
  int local_rank = 0;
  Place tensor;
  Place pipeline;
  Place data;
  Place context;
  Place expert;
};

/// What the operating system says.
struct HostFacts {
  std::string host_name;
  std::int64_t pid = 0;
  int num_gpu_devices = 0;              ///< device files /dev/nvidiaN; 0: none, or not known
  bool has_kubernetes_secrets = false;  ///< /var/run/secrets/kubernetes.io is there
};
HostFacts collect_host_facts();

struct ResourceInput {
  std::string run_id;  ///< choose_run_id(): also half of service.instance.id
  int rank = 0;
  int world_size = 1;
  std::optional<RankCoordinates> coordinates = {};  ///< nullopt: not a training process
  StoredAttributes extra = {};  ///< the caller's, for example megatron.num_layers; may replace built-in keys
  HostFacts host = {};
  bool has_training_keys = true;  ///< false: only what nemo-lens itself sends, for comparing with it
};

/// Keys in the order they were first set; texts are valid UTF-8. Later wins:
///   1. telemetry.sdk.* and what OTEL_RESOURCE_ATTRIBUTES says,
///   2. service.*, dl.rank, dl.world_size, nemo.*, wandb.*, deployment.environment,
///   3. with has_training_keys, Megatron's dl.local_rank, dl.*_parallel.size, slurm.*, nvrx.*, UUIDs; and our own
///      dl.*_parallel.rank, dl.context_parallel.*, dl.expert_parallel.*,
///   4. `extra`,
///   5. host.*, process.pid, and, inside such a job, slurm.*, k8s.*.
/// The order is nemo-lens's on purpose, though caller > environment > detectors would be more useful (lens.md section
/// 15, D1): what a collector receives must not change with the program. Whatever loses that way is said in `warnings`.
/// Different on purpose: telemetry.sdk.* and service.version tell of Pharos (D2); GPUs are counted as CUDA does (D3);
/// with has_training_keys Slurm's newer variable names are read, too (D4).
StoredAttributes build_resource(const LensConfig& config, const ResourceInput& input, const Environment& environment,
                                std::vector<std::string>& warnings);

/// Version of Pharos, "1.2.3".
std::string_view pharos_version();

/// Number of devices `mask`, a value of CUDA_VISIBLE_DEVICES, leaves visible: its entries up to the first that is
/// neither a number ≥ 0 nor a UUID (GPU-…, MIG-…), as CUDA reads it. Blank gives 0.
int count_visible_devices(std::string_view mask);

/// Pairs of OTEL_RESOURCE_ATTRIBUTES: key=value separated by commas, values percent-decoded, blanks around both
/// removed. What is no pair is skipped and said in `warnings`; of equal keys the last one counts.
StoredAttributes parse_resource_attributes(std::string_view text, std::vector<std::string>& warnings);

}  // namespace pharos::lens
