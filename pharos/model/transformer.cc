#include "pharos/model/transformer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/lens/span.h"
#include "pharos/model/layers.h"
#include "pharos/model/stages.h"
#include "pharos/nn/loss.h"
#include "pharos/nn/parallel/linear.h"
#include "pharos/nn/recompute.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

nn::RotaryOptions rotary_options(const ModelConfig& config) {
  nn::RotaryOptions options;
  const auto width = static_cast<double>(config::kv_channels_or_default(config));
  options.width = static_cast<std::int64_t>(width * config.rotary_percent) / 2 * 2;
  options.base = config.rotary_base;
  options.interleaved = config.rotary_interleaved;
  if (config.rope_scaling) {
    options.scaling = nn::RotaryOptions::Scaling::kLlama3;
    options.factor = config.rope_scaling_factor;
    options.low_frequency_factor = config.rope_scaling_low_freq_factor;
    options.high_frequency_factor = config.rope_scaling_high_freq_factor;
    options.original_max_positions = config.rope_scaling_original_max_position_embeddings;
  } else if (config.seq_len_interpolation_factor) {
    options.scaling = nn::RotaryOptions::Scaling::kLinear;
    options.factor = *config.seq_len_interpolation_factor;
  }
  return options;
}

/// Layers recomputed together in one go: [begin, end) of the stage's layers; a chunk of no recomputation has one layer.
struct Chunk {
  std::size_t begin, end;
  bool recompute;
};

/// bridge-config 1.6: `uniform` recomputes chunks of recompute_num_layers, `block` the first recompute_num_layers one
/// by one.
std::vector<Chunk> recompute_chunks(const ModelConfig& config, std::size_t num_layers) {
  std::vector<Chunk> chunks;
  const bool full = config.recompute_granularity == config::RecomputeGranularity::kFull;
  const bool uniform = full && config.recompute_method != config::RecomputeMethod::kBlock;
  const auto length = static_cast<std::size_t>(config.recompute_num_layers.value_or(1));
  for (std::size_t begin = 0; begin < num_layers;) {
    const std::size_t end = uniform ? std::min(num_layers, begin + length) : begin + 1;
    chunks.push_back({begin, end, uniform || (full && begin < length)});
    begin = end;
  }
  return chunks;
}

}  // namespace

Stage whole_model(const ModelConfig& config) { return {0, *config.num_layers, true, true}; }

at::Tensor TransformerLayer::forward(const at::Tensor& hidden, const nn::RotaryAngles* angles,
                                     const nn::ForwardContext& context, std::size_t index) const {
  PHAROS_SPAN(layer_span, lens::Group::kLayer, "megatron.layer.forward", {"megatron.layer_number", number});
  const std::string& name = self_attention.options.name;
  at::Tensor attended;
  {
    PHAROS_SPAN(span, lens::Group::kLayer, "megatron.layer.self_attention");
    attended = self_attention.forward(input_layernorm.forward(hidden), angles, context, index);
  }
  attended = hidden + nn::dropout_of_tokens(attended, hidden_dropout, name + ".residual", context, parallel,
                                            self_attention.context_parallel);
  PHAROS_SPAN(span, lens::Group::kLayer, "megatron.layer.mlp");
  const at::Tensor transformed = mlp.forward(pre_mlp_layernorm.forward(attended));
  return attended + nn::dropout_of_tokens(transformed, hidden_dropout, name + ".mlp_residual", context, parallel,
                                          self_attention.context_parallel);
}

Transformer::Transformer(const ModelConfig& config, const Stage& stage, const comm::Mesh& mesh, std::int64_t rank,
                         const ParallelGroups& groups)
    : config_(config),
      stage_(stage),
      mesh_(mesh),
      rank_(rank),
      parallel_{groups.tensor, config.sequence_parallel && mesh.size(comm::MeshDim::kTensor) > 1},
      context_parallel_{groups.context} {
  PHAROS_CHECK(groups.tensor == nullptr || (parallel_.size() == mesh.size(comm::MeshDim::kTensor) &&
                                            parallel_.rank() == mesh.coordinate(rank, comm::MeshDim::kTensor)),
               "the tensor-parallel group is not that of this rank in the mesh");
  PHAROS_CHECK(
      groups.context == nullptr || (context_parallel_.size() == mesh.size(comm::MeshDim::kContext) &&
                                    context_parallel_.rank() == mesh.coordinate(rank, comm::MeshDim::kContext)),
      "the context-parallel group is not that of this rank in the mesh");
  if (stage.embedding) embedding_ = declare_embedding(config, parallel_, context_parallel_);
  for (std::int64_t i = 0; i < stage.num_layers; ++i)
    layers_.push_back(declare_layer(config, stage.first_layer + i, mesh, rank, parallel_, context_parallel_));
  if (stage.output) {
    final_layernorm_ = declare_norm(config, "decoder.final_layernorm", *config.hidden_size, parallel_.sequence);
    if (!config.share_embeddings_and_output_weights) output_layer_ = declare_output_layer(config);
  }
  if (config.share_embeddings_and_output_weights) tie_words();
  for (auto* parameter : parameters()) tensor::declare(*parameter, compute_type(config), mesh, rank);
}

void Transformer::tie_words() {
  using Tie = tensor::Parameter::Tie;
  if (embedding_) embedding_->words.tie = Tie::kOriginal;
  if (!stage_.output) return;
  if (tensor::Parameter* words = embedding_ ? &embedding_->words : stage_.tied_words; words != nullptr) {
    words->tie = Tie::kNone;
    words->num_uses = 2;
    return;
  }
  output_layer_ = declare_embedding(config_, parallel_).words;
  output_layer_->tie = Tie::kCopy;
}

std::vector<tensor::Parameter*> Transformer::parameters() {
  std::vector<tensor::Parameter*> all;
  const auto add = [&](tensor::Parameter& parameter) { all.push_back(&parameter); };
  if (embedding_) {
    add(embedding_->words);
    if (embedding_->positions) add(*embedding_->positions);
  }
  for (auto& layer : layers_) for_each_parameter(*layer, add);
  if (final_layernorm_) {
    add(final_layernorm_->weight);
    if (final_layernorm_->bias) add(*final_layernorm_->bias);
  }
  if (output_layer_) add(*output_layer_);
  return all;
}

void Transformer::materialize(at::Device device, std::uint64_t seed) {
  for (auto* parameter : parameters()) tensor::materialize(*parameter, device, seed, mesh_, rank_);
  if (config_.position_embedding_type == config::PositionEmbedding::kRope) {
    rotary_frequencies_ = nn::inverse_frequencies(rotary_options(config_)).to(device);
  }
}

void Transformer::allocate(at::Device device) {
  for (auto* parameter : parameters()) tensor::allocate(*parameter, device, mesh_, rank_);
  if (config_.position_embedding_type == config::PositionEmbedding::kRope) {
    rotary_frequencies_ = nn::inverse_frequencies(rotary_options(config_)).to(device);
  }
}

at::Tensor Transformer::hidden_states(const at::Tensor& input, const nn::ForwardContext& context) const {
  PHAROS_CHECK(parallel_.size() == mesh_.size(comm::MeshDim::kTensor), "the tensor-parallel group is missing");
  PHAROS_CHECK(context_parallel_.size() == mesh_.size(comm::MeshDim::kContext),
               "the context-parallel group is missing");
  at::Tensor hidden = embedding_ ? embedding_->forward(input, context) : input.to(compute_type(config_));
  if (tap_) tap_("embed", embedding_ ? nn::embed(input, embedding_->words) : hidden);
  hidden = run_layers(hidden, context);
  if (final_layernorm_) hidden = final_layernorm_->forward(hidden);
  if (tap_ && final_layernorm_) tap_("final_norm", hidden);
  return hidden;
}

at::Tensor Transformer::run_layers(at::Tensor hidden, const nn::ForwardContext& context) const {
  nn::RotaryAngles angles;
  const bool rotary = rotary_frequencies_.defined();
  if (rotary) angles = nn::rotary_angles(rotary_frequencies_, context.positions, config_.rotary_interleaved);
  for (const Chunk& chunk : recompute_chunks(config_, layers_.size())) {
    // Everything is captured by value: the chunk may run again long after this call, in the backward pass.
    const auto run = [this, chunk, rotary, angles, context](const std::vector<at::Tensor>& inputs) {
      at::Tensor state = inputs[0];
      for (std::size_t i = chunk.begin; i < chunk.end; ++i) {
        state = layers_[i]->forward(state, rotary ? &angles : nullptr, context, i);
        if (tap_) tap_("layer." + std::to_string(stage_.first_layer + static_cast<std::int64_t>(i)), state);
      }
      return state;
    };
    hidden = chunk.recompute && c10::GradMode::is_enabled() ? nn::recompute(run, {hidden}) : run({hidden});
  }
  return hidden;
}

const tensor::Parameter& Transformer::output_words() const {
  if (output_layer_) return *output_layer_;
  return embedding_ ? embedding_->words : *stage_.tied_words;
}

at::Tensor Transformer::own_logits(const at::Tensor& hidden) const {
  return nn::column_linear(hidden, output_words(), nullptr, parallel_);
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  PHAROS_CHECK(!parallel_.is_split() && !context_parallel_.is_split(), "the logits lie on several ranks");
  return own_logits(hidden);
}

void Transformer::set_activation_tap(ActivationTap tap) {
  PHAROS_CHECK(!parallel_.is_split() && !context_parallel_.is_split(), "activations lie on several ranks");
  tap_ = std::move(tap);
}

at::Tensor Transformer::token_losses(const at::Tensor& hidden, const at::Tensor& labels) const {
  return nn::cross_entropy(own_logits(hidden), labels, *config_.vocab_size, parallel_);
}

nn::KeyValueCache Transformer::make_cache(std::int64_t batch, std::int64_t capacity) const {
  nn::KeyValueCache cache;
  for (const auto& layer : layers_) {
    const auto& options = layer->self_attention.options;
    const auto& like = layer->self_attention.qkv.weight.data;
    const auto make = [&] {
      return at::empty({batch, options.num_kv_heads, capacity, options.head_width},
                       like.options().requires_grad(false));
    };
    cache.layers.push_back({make(), make()});
  }
  return cache;
}

}  // namespace pharos::model
