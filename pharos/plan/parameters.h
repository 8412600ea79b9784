// How many parameters a model has, by component, and how many of them a rank holds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/plan/stages.h"
#include "pharos/tensor/parameter.h"

namespace pharos::plan {

struct ComponentParameters {
  std::string name;          ///< "embedding", "attention", "mlp", "experts", "shared_experts", "router", "norms", …
  std::int64_t total = 0;    ///< logical elements of the whole model, without padding
  std::int64_t on_rank = 0;  ///< elements in the memory of the rank with the most, padding included
};

/// Trained parameters of a rank that the same ranks hold copies of: those of experts, or all others.
struct BufferPart {
  std::int64_t elements = 0;  ///< of the flat buffer (optim::FlatLayout)
  /// Of the largest unit that is gathered or reduced at once when gradients or weights are divided: a layer, what comes
  /// before the layers, or what comes after them.
  std::int64_t largest_unit = 0;
};

struct RankParameters {
  std::int64_t elements = 0;        ///< in memory, padding included
  std::int64_t float_elements = 0;  ///< thereof in fp32 whatever the compute type is
  std::int64_t fixed_elements = 0;  ///< thereof not trained: no gradient, no optimizer state, never divided
  BufferPart others, experts;
  std::int64_t largest_linear = 0;      ///< of the largest tensor a gradient GEMM writes
  std::int64_t summed_over_tensor = 0;  ///< whose gradients tensor-parallel ranks sum
  std::int64_t buffer_elements() const { return others.elements + experts.elements; }
};

struct ParameterPlan {
  std::int64_t total = 0;
  std::int64_t active = 0;  ///< that one token passes through: of experts topk, of everything else all
  std::vector<ComponentParameters> components;
  std::vector<RankParameters> ranks;  ///< [pipeline rank]
  std::int64_t largest_rank = 0;      ///< pipeline rank with the most parameters
};

/// Calls visit(parameter) for every parameter of a chunk, declared but without data, in the order of the model. Copies
/// of the embedding for the output layer or for multi-token prediction on another pipeline rank have
/// Parameter::Tie::kCopy; what optimizer.freeze names is not trainable.
void visit_parameters(const config::RunConfig& config, const ModelChunk& chunk, const comm::Mesh& mesh,
                      const std::function<void(const tensor::Parameter&)>& visit);

ParameterPlan plan_parameters(const config::RunConfig& config, const comm::Mesh& mesh);

}  // namespace pharos::plan
