#include "pharos/model/layers.h"

#include <algorithm>
#include <cmath>

#include "pharos/config/derived.h"
#include "pharos/model/flops.h"
#include "pharos/model/layers/parts.h"

namespace pharos::model {
namespace {

using comm::MeshDim;
using config::ModelConfig;
using tensor::Init;
using tensor::Parameter;

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
  attention.context_parallel = placement.context_parallel;
  if (config.softmax_type != config::SoftmaxType::kVanilla) {
    Parameter& sinks = attention.sinks.emplace();
    sinks.name = name + ".core_attention.softmax_offset";
    sinks.pieces = {{sinks.name, {*config.num_attention_heads}, {{0, MeshDim::kTensor}}, Init::constant(0)}};
    sinks.weight_decay = false;
    sinks.trainable = config.softmax_type == config::SoftmaxType::kLearnable;
  }
  return attention;
}

nn::ContextParallel::Exchange exchange_of_layer(const ModelConfig& config, std::int64_t layer) {
  using Exchange = nn::ContextParallel::Exchange;
  if (!config.cp_comm_type) return Exchange::kRing;
  const auto& types = *config.cp_comm_type;
  const std::string& type = types.size() == 1 ? types.front() : types.at(static_cast<std::size_t>(layer));
  return type == "all_gather" ? Exchange::kAllGather : Exchange::kRing;
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
  options.recompute = recomputes(config, "core_attn");
  options.scale = config.softmax_scale;
  options.softcap = config.attn_logit_softcapping;
  options.name = name + ".core_attention";
  return options;
}

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
    norm.bias.emplace();
    norm.bias->name = name + ".bias";
    norm.bias->pieces = {{norm.bias->name, {width}, {}, Init::constant(0)}};
    norm.bias->weight_decay = false;
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
  if (config.scale_embeddings_by_hidden_size) embedding.scale = std::sqrt(static_cast<double>(*config.hidden_size));
  embedding.parallel = parallel;
  embedding.context_parallel = context_parallel;
  return embedding;
}

Parameter declare_output_layer(const ModelConfig& config) {
  return declare_vocabulary_table(config, "output_layer.weight", config.init_method_std);
}

std::unique_ptr<TransformerLayer> declare_layer(const ModelConfig& config, std::int64_t layer, const comm::Mesh& mesh,
                                                std::int64_t rank, const ParallelGroups& groups,
                                                const std::string& given_name) {
  const std::string name = given_name.empty() ? "decoder.layers." + std::to_string(layer) : given_name;
  const bool sequence = config.sequence_parallel && mesh.size(MeshDim::kTensor) > 1;
  const Placement placement{
      mesh, rank, {groups.tensor, sequence}, {groups.context, exchange_of_layer(config, layer)}, groups};
  const auto norm = [&](const char* part) {
    return declare_norm(config, name + "." + part, *config.hidden_size, sequence);
  };
  auto declared = std::make_unique<TransformerLayer>();
  declared->number = layer + 1;
  declared->input_layernorm = norm("input_layernorm");
  if (config.multi_latent_attention) {
    declared->self_attention = declare_latent_attention(config, layer, placement, name + ".self_attention");
  } else {
    declared->self_attention = declare_attention(config, layer, placement, name + ".self_attention");
  }
  declared->pre_mlp_layernorm = norm("pre_mlp_layernorm");
  if (config::is_moe_layer(config, std::min(layer, *config.num_layers - 1))) {
    declared->mlp = declare_moe(config, placement, name + ".mlp");
  } else {
    declared->mlp = declare_mlp(config, config::ffn_hidden_size_or_default(config), placement, name + ".mlp");
  }
  if (config.sandwich_layernorm) {
    declared->post_self_attn_layernorm = norm("post_self_attn_layernorm");
    declared->post_mlp_layernorm = norm("post_mlp_layernorm");
  }
  declared->hidden_dropout = config.hidden_dropout;
  declared->recompute_mlp = recomputes(config, "mlp") || recomputes(config, "moe");
  declared->parallel = placement.parallel;
  declared->context_parallel = placement.context_parallel;
  declared->name = name;
  return declared;
}

std::unique_ptr<PredictionLayer> declare_prediction_layer(const ModelConfig& config, std::int64_t depth,
                                                          const comm::Mesh& mesh, std::int64_t rank,
                                                          const ParallelGroups& groups) {
  const std::string name = "mtp.layers." + std::to_string(depth);
  const bool sequence = config.sequence_parallel && mesh.size(MeshDim::kTensor) > 1;
  const Placement placement{mesh, rank, {groups.tensor, sequence}, {groups.context}, groups};
  const std::int64_t hidden = *config.hidden_size;
  auto declared = std::make_unique<PredictionLayer>();
  declared->embedding_norm = declare_norm(config, name + ".enorm", hidden, sequence);
  declared->hidden_norm = declare_norm(config, name + ".hnorm", hidden, sequence);
  declared->projection =
      declare_whole_linear(name + ".eh_proj", hidden, 2 * hidden, false, config.init_method_std, placement);
  declared->layer = declare_layer(config, *config.num_layers + depth, mesh, rank, groups, name + ".mtp_model_layer");
  declared->final_layernorm = declare_norm(config, name + ".final_layernorm", hidden, sequence);
  return declared;
}

}  // namespace pharos::model
