#include "pharos/model/layers/parts.h"

#include <algorithm>
#include <cmath>

namespace pharos::model {
namespace {

using comm::MeshDim;
using config::ModelConfig;
using tensor::Init;
using tensor::Parameter;
using tensor::Split;

/// split_axis: -1 for a matrix that is whole on every rank.
Parameter declare_matrix(std::string name, const std::vector<Block>& blocks, std::int64_t columns, int split_axis,
                         double deviation) {
  Parameter parameter;
  parameter.name = std::move(name);
  for (const Block& block : blocks) {
    std::vector<Split> splits;
    if (split_axis >= 0) splits.push_back({split_axis, MeshDim::kTensor, block.replicas});
    parameter.pieces.push_back({block.name + ".weight", {block.rows, columns}, splits, Init::normal(deviation)});
  }
  return parameter;
}

Parameter declare_bias(std::string name, const std::vector<Block>& blocks, bool is_split) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.weight_decay = false;
  for (const Block& block : blocks) {
    std::vector<Split> splits;
    if (is_split) splits.push_back({0, MeshDim::kTensor, block.replicas});
    parameter.pieces.push_back({block.name + ".bias", {block.rows}, splits, Init::constant(0)});
  }
  return parameter;
}

}  // namespace

nn::ColumnLinear declare_column_linear(const std::string& name, const std::vector<Block>& blocks, std::int64_t columns,
                                       bool bias, double deviation, const nn::TensorParallel& parallel) {
  nn::ColumnLinear linear{declare_matrix(name + ".weight", blocks, columns, 0, deviation), std::nullopt, parallel};
  if (bias) linear.bias = declare_bias(name + ".bias", blocks, true);
  return linear;
}

nn::RowLinear declare_row_linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias,
                                 double deviation, const Placement& placement) {
  nn::RowLinear linear{declare_matrix(name + ".weight", {{name, rows}}, columns, 1, deviation), std::nullopt,
                       placement.parallel};
  if (bias) {
    linear.bias = declare_bias(name + ".bias", {{name, rows}}, false);
    linear.bias->sum_gradient_over_tensor = placement.parallel.sequence;
  }
  return linear;
}

nn::Linear declare_whole_linear(const std::string& name, std::int64_t rows, std::int64_t columns, bool bias,
                                double deviation, const Placement& placement) {
  nn::Linear linear{declare_matrix(name + ".weight", {{name, rows}}, columns, -1, deviation), std::nullopt};
  linear.weight.sum_gradient_over_tensor = placement.parallel.sequence;
  if (bias) {
    linear.bias = declare_bias(name + ".bias", {{name, rows}}, false);
    linear.bias->sum_gradient_over_tensor = placement.parallel.sequence;
  }
  return linear;
}

double output_deviation(const ModelConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(*config.num_layers));
}

bool recomputes(const ModelConfig& config, const std::string& module) {
  if (config.recompute_granularity != config::RecomputeGranularity::kSelective) return false;
  if (!config.recompute_modules) return module == "core_attn";
  return std::find(config.recompute_modules->begin(), config.recompute_modules->end(), module) !=
         config.recompute_modules->end();
}

}  // namespace pharos::model
