// What the declarations of attention, MLP and experts have in common. Used by layers.cc and the files beside it alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/model_config.h"
#include "pharos/model/transformer.h"
#include "pharos/nn/latent_attention.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/moe/moe.h"
#include "pharos/tensor/parameter.h"

namespace pharos::model {

/// One row or column block of a fused matrix: "q" of q|k|v, "gate" of gate|up.
struct Block {
  std::string name;  ///< piece name without ".weight" or ".bias"
  std::int64_t rows;
  int replicas = 1;  ///< of a column-parallel split
};

/// Where a layer lies, and the ranks that compute it together.
struct Placement {
  const comm::Mesh& mesh;
  std::int64_t rank;
  nn::TensorParallel parallel;
  nn::ContextParallel context_parallel;
  ParallelGroups groups;
};

/// Column parallel: rows of the weight (outputs) are divided.
nn::ColumnLinear declare_column_linear(const std::string& name, const std::vector<Block>& blocks, std::int64_t columns,
                                       bool bias, double deviation, const nn::TensorParallel& parallel);

/// Row parallel: columns of the weight (inputs) are divided, the bias is whole everywhere.
nn::RowLinear declare_row_linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias,
                                 double deviation, const Placement& placement);

/// Whole on every tensor-parallel rank; under sequence parallelism each sees a part of the gradient.
nn::Linear declare_whole_linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias,
                                double deviation, const Placement& placement);

/// Megatron scales the standard deviation of projections onto the residual stream by 1/sqrt(2 L).
double output_deviation(const config::ModelConfig& config);

/// True when model.recompute_modules of selective recomputation has `module`; "core_attn" is in an unset list.
bool recomputes(const config::ModelConfig& config, const std::string& module);

nn::AttentionOptions attention_options(const config::ModelConfig& config, std::int64_t layer,
                                       const Placement& placement, const std::string& name);

/// Multi-latent attention, with or without compressed queries (latent.cc).
nn::LatentAttention declare_latent_attention(const config::ModelConfig& config, std::int64_t layer,
                                             const Placement& placement, const std::string& name);

/// A dense MLP of `width` (mlp.cc).
nn::Mlp declare_mlp(const config::ModelConfig& config, std::int64_t width, const Placement& placement,
                    const std::string& name);

/// Router, experts and shared experts (mlp.cc).
nn::Moe declare_moe(const config::ModelConfig& config, const Placement& placement, const std::string& name);

}  // namespace pharos::model
