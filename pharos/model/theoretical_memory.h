// Megatron's theoretical estimate of parameters and memory (megatron-telemetry.md 9.7), for comparison with what other
// people's plans say. What Pharos itself needs is in pharos/plan/memory.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/config/model_config.h"

namespace pharos::model {

/// Parameters by formula: biases of linear layers, q/k norms and position embeddings do not count. In elements.
struct ParameterEstimate {
  double attention = 0;     ///< projections, and norms of latents, of all layers
  double mlp = 0;           ///< dense layers and shared experts
  double experts = 0;       ///< routed
  double router = 0;        ///< with expert bias, shared-expert gate
  double norms = 0;         ///< of the layers, and the final one
  double mtp = 0;           ///< layers of multi-token prediction
  double embedding = 0;     ///< one table
  double output = 0;        ///< the output layer's table; 0 when tied
  double block = 0;         ///< all layers and the final norm
  double active_block = 0;  ///< as block, with only the experts that a token passes through
  double active_mtp = 0;
  double total = 0;
  double active_total = 0;
  double most_loaded_shard = 0;         ///< first pipeline stage (with one stage, everything) on one rank
  double most_loaded_expert_shard = 0;  ///< thereof routed experts
  double other_shards = 0;              ///< a middle pipeline stage on one rank
};

/// What the estimate reads beside the model.
struct EstimateSetup {
  std::int64_t data_parallel_size = 1;
  std::int64_t expert_data_parallel_size = 1;
  std::int64_t micro_batch_size = 1;  ///< sequences
  std::int64_t num_microbatches = 1;  ///< a step and data-parallel rank
  bool distributed_optimizer = false;
};

struct ActivationEstimate {
  double layer_bytes = 0;  ///< of one layer on one rank
  double total_bytes = 0;  ///< on the first stage at its peak
};

struct MemoryEstimate {
  ParameterEstimate parameters;
  double weight_and_optimizer_bytes = 0;  ///< of the most loaded rank
  ActivationEstimate activations;         ///< by the form Megatron takes for this configuration
  double interleaving_penalty = 0;        ///< factor on activations; 0 without virtual stages
  std::int64_t in_flight_microbatches = 1;
  bool with_sequence_parallel = false;  ///< which form of activations was taken
};

ParameterEstimate estimate_parameters(const config::ModelConfig& model);

/// 18 bytes a parameter, or 6 + 12 / DP with a distributed optimizer (expert parameters over expert data-parallel
/// ranks).
double estimate_weight_and_optimizer_bytes(const ParameterEstimate& parameters, const EstimateSetup& setup);

/// With sequence parallelism and selective recomputation (Korthikanti et al. 2022, table 2).
ActivationEstimate estimate_activations_with_sequence_parallel(const config::ModelConfig& model,
                                                               const EstimateSetup& setup);
/// Otherwise.
ActivationEstimate estimate_activations_without_sequence_parallel(const config::ModelConfig& model,
                                                                  const EstimateSetup& setup);

MemoryEstimate estimate_memory(const config::ModelConfig& model, const EstimateSetup& setup);

/// The lines Megatron prints, in its wording and digits.
std::vector<std::string> render_parameter_lines(const config::ModelConfig& model, const ParameterEstimate& parameters);
std::vector<std::string> render_memory_lines(const config::ModelConfig& model, const MemoryEstimate& memory);

}  // namespace pharos::model
