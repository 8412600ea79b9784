#include "pharos/model/layers.h"

#include <algorithm>
#include <cmath>

#include "pharos/config/derived.h"
#include "pharos/model/flops.h"

namespace pharos::model {
namespace {

using comm::MeshDim;
using config::ModelConfig;
using tensor::Init;
using tensor::Parameter;
using tensor::Piece;
using tensor::Split;

/// One row or column block of a fused matrix: "q" of q|k|v, "gate" of gate|up.
struct Block {
  std::string name;  ///< piece name without ".weight" or ".bias"
  std::int64_t rows;
  int replicas = 1;  ///< of a column-parallel split
};

/// Where a layer lies.
struct Placement {
  const comm::Mesh& mesh;
  std::int64_t rank;
  nn::TensorParallel parallel;
};

Parameter declare_matrix(std::string name, const std::vector<Block>& blocks, std::int64_t columns, int split_axis,
                         double deviation) {
  Parameter parameter;
  parameter.name = std::move(name);
  for (const Block& block : blocks) {
    parameter.pieces.push_back({block.name + ".weight",
                                {block.rows, columns},
                                {{split_axis, MeshDim::kTensor, block.replicas}},
                                Init::normal(deviation)});
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

/// Column parallel: rows of the weight (outputs) are divided.
nn::ColumnLinear declare_column_linear(const std::string& name, const std::vector<Block>& blocks, std::int64_t columns,
                                       bool bias, double deviation, const nn::TensorParallel& parallel) {
  nn::ColumnLinear linear{declare_matrix(name + ".weight", blocks, columns, 0, deviation), std::nullopt, parallel};
  if (bias) linear.bias = declare_bias(name + ".bias", blocks, true);
  return linear;
}

/// Row parallel: columns of the weight (inputs) are divided, the bias is whole everywhere.
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

/// Megatron scales the standard deviation of projections onto the residual stream by 1/sqrt(2 L).
double output_deviation(const ModelConfig& config) {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(*config.num_layers));
}

bool recomputes_core_attention(const ModelConfig& config) {
  if (config.recompute_granularity != config::RecomputeGranularity::kSelective) return false;
  if (!config.recompute_modules) return true;
  return std::find(config.recompute_modules->begin(), config.recompute_modules->end(), "core_attn") !=
         config.recompute_modules->end();
}

nn::AttentionOptions attention_options(const ModelConfig& config, std::int64_t layer, const Placement& placement,
                                       const std::string& name) {
  const std::int64_t tensor_parallel = placement.mesh.size(MeshDim::kTensor);
  nn::AttentionOptions options;
  options.num_global_heads = *config.num_attention_heads;
  options.num_heads = *config.num_attention_heads / tensor_parallel;
  options.num_kv_heads = std::max<std::int64_t>(1, config::num_query_groups_or_default(config) / tensor_parallel);
  options.first_head = options.num_heads * placement.mesh.coordinate(placement.rank, MeshDim::kTensor);
  options.head_width = config::kv_channels_or_default(config);
  options.dropout = config.attention_dropout;
  options.window = attention_window(config, layer);
  options.fused = config.attention_backend != config::AttentionBackend::kUnfused &&
                  config.attention_backend != config::AttentionBackend::kLocal;
  options.softmax_in_fp32 = config.attention_softmax_in_fp32;
  options.recompute = recomputes_core_attention(config);
  options.name = name + ".core_attention";
  return options;
}

nn::SelfAttention declare_attention(const ModelConfig& config, std::int64_t layer, const Placement& placement,
                                    const std::string& name) {
  const std::int64_t width = config::kv_channels_or_default(config), hidden = *config.hidden_size;
  const std::int64_t query_width = *config.num_attention_heads * width;
  const std::int64_t groups = config::num_query_groups_or_default(config), kv_width = groups * width;
  const std::int64_t tensor_parallel = placement.mesh.size(MeshDim::kTensor);
  const int replicas = static_cast<int>(std::max<std::int64_t>(1, tensor_parallel / groups));
  const std::vector<Block> blocks{
      {name + ".q", query_width}, {name + ".k", kv_width, replicas}, {name + ".v", kv_width, replicas}};
  nn::SelfAttention attention;
  attention.qkv = declare_column_linear(name + ".qkv", blocks, hidden, config.add_bias_linear || config.add_qkv_bias,
                                        config.init_method_std, placement.parallel);
  if (config.qk_layernorm) {
    attention.q_layernorm = declare_norm(config, name + ".q_layernorm", width, tensor_parallel > 1);
    attention.k_layernorm = declare_norm(config, name + ".k_layernorm", width, tensor_parallel > 1);
  }
  attention.linear_proj = declare_row_linear(name + ".linear_proj", hidden, query_width,
                                             config.add_attention_output_bias.value_or(config.add_bias_linear),
                                             output_deviation(config), placement);
  attention.options = attention_options(config, layer, placement, name);
  return attention;
}

nn::ContextParallel::Exchange exchange_of_layer(const ModelConfig& config, std::int64_t layer) {
  using Exchange = nn::ContextParallel::Exchange;
  if (!config.cp_comm_type) return Exchange::kRing;
  const auto& types = *config.cp_comm_type;
  const std::string& type = types.size() == 1 ? types.front() : types.at(static_cast<std::size_t>(layer));
  return type == "all_gather" ? Exchange::kAllGather : Exchange::kRing;
}

nn::Mlp declare_mlp(const ModelConfig& config, const Placement& placement, const std::string& name) {
  const std::int64_t inner = config::ffn_hidden_size_or_default(config), hidden = *config.hidden_size;
  const std::vector<Block> blocks = config.gated_linear_unit
                                        ? std::vector<Block>{{name + ".gate", inner}, {name + ".up", inner}}
                                        : std::vector<Block>{{name + ".linear_fc1", inner}};
  nn::Mlp mlp;
  const bool bias = config.add_mlp_bias.value_or(config.add_bias_linear);
  mlp.fc1 =
      declare_column_linear(name + ".linear_fc1", blocks, hidden, bias, config.init_method_std, placement.parallel);
  mlp.fc2 = declare_row_linear(name + ".linear_fc2", hidden, inner, bias, output_deviation(config), placement);
  mlp.activation = config.activation_func;
  mlp.gated = config.gated_linear_unit;
  mlp.clamp = config.activation_func_clamp_value;
  mlp.up_offset = config.glu_linear_offset;
  return mlp;
}

/// A table of `rows` (padded to `padded_rows`) divided over tensor-parallel ranks by rows.
Parameter declare_vocabulary_table(const ModelConfig& config, const std::string& name, double deviation) {
  const std::int64_t rows = *config.vocab_size, padded = config::padded_vocab_size(config);
  Parameter parameter;
  parameter.name = name;
  parameter.pieces = {{name,
                       {rows, *config.hidden_size},
                       {{0, MeshDim::kTensor}},
                       Init::normal(deviation),
                       padded > rows ? padded : 0}};
  return parameter;
}

}  // namespace

nn::Norm declare_norm(const ModelConfig& config, const std::string& name, std::int64_t width, bool partial) {
  nn::Norm norm;
  norm.is_rms = config.normalization == config::Normalization::kRmsNorm;
  norm.zero_centered = config.layernorm_zero_centered_gamma;
  norm.epsilon = config.layernorm_epsilon;
  norm.weight.name = name + ".weight";
  norm.weight.weight_decay = false;
  norm.weight.pieces = {{norm.weight.name, {width}, {}, Init::constant(norm.zero_centered ? 0 : 1)}};
  norm.weight.sum_gradient_over_tensor = partial;
  if (!norm.is_rms) {
    norm.bias = declare_bias(name + ".bias", {{name, width}}, false);
    norm.bias->sum_gradient_over_tensor = partial;
  }
  return norm;
}

nn::Embedding declare_embedding(const ModelConfig& config, const nn::TensorParallel& parallel,
                                const nn::ContextParallel& context_parallel) {
  const double deviation = config.embedding_init_method_std.value_or(config.init_method_std);
  nn::Embedding embedding;
  embedding.words = declare_vocabulary_table(config, "embedding.word_embeddings.weight", deviation);
  if (config.position_embedding_type == config::PositionEmbedding::kLearnedAbsolute) {
    embedding.positions.emplace();
    embedding.positions->name = "embedding.position_embeddings.weight";
    embedding.positions->pieces = {{embedding.positions->name,
                                    {config.seq_length, *config.hidden_size},
                                    {},
                                    Init::normal(config.init_method_std)}};
    embedding.positions->sum_gradient_over_tensor = parallel.sequence;
  }
  embedding.dropout = config.hidden_dropout;
  embedding.parallel = parallel;
  embedding.context_parallel = context_parallel;
  return embedding;
}

Parameter declare_output_layer(const ModelConfig& config) {
  return declare_vocabulary_table(config, "output_layer.weight", config.init_method_std);
}

std::unique_ptr<TransformerLayer> declare_layer(const ModelConfig& config, std::int64_t layer, const comm::Mesh& mesh,
                                                std::int64_t rank, const nn::TensorParallel& parallel,
                                                const nn::ContextParallel& context_parallel) {
  const std::string name = "decoder.layers." + std::to_string(layer);
  const Placement placement{mesh, rank, parallel};
  auto declared = std::make_unique<TransformerLayer>();
  declared->number = layer + 1;
  declared->input_layernorm =
      declare_norm(config, name + ".input_layernorm", *config.hidden_size, placement.parallel.sequence);
  declared->self_attention = declare_attention(config, layer, placement, name + ".self_attention");
  declared->self_attention.context_parallel = {context_parallel.group, exchange_of_layer(config, layer)};
  declared->pre_mlp_layernorm =
      declare_norm(config, name + ".pre_mlp_layernorm", *config.hidden_size, placement.parallel.sequence);
  declared->mlp = declare_mlp(config, placement, name + ".mlp");
  declared->hidden_dropout = config.hidden_dropout;
  declared->parallel = parallel;
  return declared;
}

}  // namespace pharos::model
