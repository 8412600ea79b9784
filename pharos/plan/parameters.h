// How many parameters a model has, by component, and how many of them a rank holds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/model_config.h"
#include "pharos/plan/stages.h"
#include "pharos/tensor/parameter.h"

namespace pharos::plan {

struct ComponentParameters {
  std::string name;          ///< "embedding", "attention", "mlp", "experts", "router", "norms", "mtp" or "output"
  std::int64_t total = 0;    ///< logical elements of the whole model, without padding
  std::int64_t on_rank = 0;  ///< elements in the memory of the rank with the most, padding included
};

struct RankParameters {
  std::int64_t elements = 0;         ///< in memory, padding included
  std::int64_t buffer_elements = 0;  ///< of a flat buffer of them (optim::FlatLayout)
  std::int64_t largest_linear = 0;   ///< of the largest tensor a gradient GEMM writes
  /// Of a flat buffer of the largest unit that is gathered or reduced at once when gradients or weights are divided: a
  /// layer, what comes before the layers, or what comes after them.
  std::int64_t largest_unit = 0;
  std::int64_t summed_over_tensor = 0;  ///< whose gradients tensor-parallel ranks sum
};

struct ParameterPlan {
  bool by_formula = false;  ///< Megatron's formulas: the model has layers that pharos::model does not declare
  std::int64_t total = 0;
  std::int64_t active = 0;  ///< that one token passes through
  std::vector<ComponentParameters> components;
  std::vector<RankParameters> ranks;  ///< [pipeline rank]
  std::int64_t largest_rank = 0;      ///< pipeline rank with the most parameters
};

/// False for mixtures of experts, multi-latent attention and multi-token prediction.
bool is_declared(const config::ModelConfig& model);

/// Calls visit(parameter) for every parameter of a chunk, declared but without data. Tied embeddings are visited at
/// both ends when these lie on different pipeline ranks.
void visit_parameters(const config::ModelConfig& model, const ModelChunk& chunk, const comm::Mesh& mesh,
                      const std::function<void(const tensor::Parameter&)>& visit);

ParameterPlan plan_parameters(const config::ModelConfig& model, const comm::Mesh& mesh);

}  // namespace pharos::plan
