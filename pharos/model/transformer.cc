#include "pharos/model/transformer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/lens/span.h"
#include "pharos/model/layers.h"
#include "pharos/model/layers/rotary_options.h"
#include "pharos/model/stages.h"
#include "pharos/nn/loss.h"
#include "pharos/nn/parallel/linear.h"
#include "pharos/nn/recompute.h"

namespace pharos::model {
namespace {

using config::ModelConfig;

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

Stage whole_model(const ModelConfig& config) {
  return {.num_layers = *config.num_layers, .num_prediction_layers = config.mtp_num_layers.value_or(0)};
}

const nn::AttentionOptions& TransformerLayer::attention_options() const {
  return std::visit([](const auto& attention) -> const nn::AttentionOptions& { return attention.options; },
                    self_attention);
}

at::Tensor TransformerLayer::forward(const at::Tensor& hidden, const nn::RotaryAngles* angles,
                                     const nn::ForwardContext& context, std::size_t index) const {
  PHAROS_SPAN(layer_span, lens::Group::kLayer, "megatron.layer.forward", {"megatron.layer_number", number});
  const std::string& dropout_name = attention_options().name;
  const auto drop = [&](const at::Tensor& tensor, const char* part) {
    return nn::dropout_of_tokens(tensor, hidden_dropout, dropout_name + part, context, parallel, context_parallel);
  };
  at::Tensor attended;
  {
    PHAROS_SPAN(span, lens::Group::kLayer, "megatron.layer.self_attention");
    const at::Tensor input = input_layernorm.forward(hidden);
    attended = std::visit([&](const auto& attention) { return attention.forward(input, angles, context, index); },
                          self_attention);
    if (post_self_attn_layernorm) attended = post_self_attn_layernorm->forward(attended);
  }
  attended = hidden + drop(attended, ".residual");
  PHAROS_SPAN(span, lens::Group::kLayer, "megatron.layer.mlp");
  const auto transform = [this, context](const std::vector<at::Tensor>& inputs) {
    if (const auto* experts = std::get_if<nn::Moe>(&mlp)) return experts->forward(inputs[0], context);
    return std::get<nn::Mlp>(mlp).forward(inputs[0]);
  };
  const at::Tensor input = pre_mlp_layernorm.forward(attended);
  at::Tensor transformed =
      recompute_mlp && c10::GradMode::is_enabled() ? nn::recompute(transform, {input}) : transform({input});
  if (post_mlp_layernorm) transformed = post_mlp_layernorm->forward(transformed);
  return attended + drop(transformed, ".mlp_residual");
}

Transformer::Transformer(const ModelConfig& config, const Stage& stage, const comm::Mesh& mesh, std::int64_t rank,
                         const ParallelGroups& groups)
    : config_(config),
      stage_(stage),
      mesh_(mesh),
      rank_(rank),
      parallel_{groups.tensor, config.sequence_parallel && mesh.size(comm::MeshDim::kTensor) > 1},
      context_parallel_{groups.context},
      groups_(groups) {
  PHAROS_CHECK(groups.tensor == nullptr || (parallel_.size() == mesh.size(comm::MeshDim::kTensor) &&
                                            parallel_.rank() == mesh.coordinate(rank, comm::MeshDim::kTensor)),
               "the tensor-parallel group is not that of this rank in the mesh");
  PHAROS_CHECK(
      groups.context == nullptr || (context_parallel_.size() == mesh.size(comm::MeshDim::kContext) &&
                                    context_parallel_.rank() == mesh.coordinate(rank, comm::MeshDim::kContext)),
      "the context-parallel group is not that of this rank in the mesh");
  if (stage.embedding) embedding_ = declare_embedding(config, parallel_, context_parallel_);
  for (std::int64_t i = 0; i < stage.num_layers; ++i)
    layers_.push_back(declare_layer(config, stage.first_layer + i, mesh, rank, groups));
  for (std::int64_t i = 0; i < stage.num_prediction_layers; ++i)
    prediction_layers_.push_back(declare_prediction_layer(config, i, mesh, rank, groups));
  if (stage.output) {
    final_layernorm_ = declare_norm(config, "decoder.final_layernorm", *config.hidden_size, parallel_.sequence);
    if (!config.share_embeddings_and_output_weights) output_layer_ = declare_output_layer(config);
  }
  tie_words();
  has_experts_ = !moe_layers().empty();
  for (auto* parameter : parameters()) tensor::declare(*parameter, compute_type(config), mesh, rank);
}

void Transformer::tie_words() {
  using Tie = tensor::Parameter::Tie;
  const bool is_tied = config_.share_embeddings_and_output_weights;
  const auto depth = static_cast<int>(config_.mtp_num_layers.value_or(0));
  if (!is_tied && depth == 0) return;
  if (embedding_) embedding_->words.tie = Tie::kOriginal;
  if (!stage_.output) return;
  if (output_layer_) output_layer_->num_uses = 1 + depth;
  if (tensor::Parameter* words = embedding_ ? &embedding_->words : stage_.tied_words; words != nullptr) {
    words->tie = Tie::kNone;
    words->num_uses = 1 + depth + (is_tied ? 1 + depth : 0);
    prediction_words_ = words;
    return;
  }
  std::optional<tensor::Parameter>& copy = is_tied ? output_layer_ : prediction_words_copy_;
  copy = declare_embedding(config_, parallel_).words;
  copy->tie = Tie::kCopy;
  copy->num_uses = depth + (is_tied ? 1 + depth : 0);
  prediction_words_ = &*copy;
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
  if (prediction_words_copy_) add(*prediction_words_copy_);
  for (auto& layer : prediction_layers_) for_each_parameter(*layer, add);
  if (output_layer_) add(*output_layer_);
  return all;
}

void Transformer::materialize(at::Device device, std::uint64_t seed) {
  for (auto* parameter : parameters()) tensor::materialize(*parameter, device, seed, mesh_, rank_);
  make_rotary_frequencies(device);
}

void Transformer::allocate(at::Device device) {
  for (auto* parameter : parameters()) tensor::allocate(*parameter, device, mesh_, rank_);
  make_rotary_frequencies(device);
}

void Transformer::make_rotary_frequencies(at::Device device) {
  using config::PositionEmbedding;
  const PositionEmbedding kind = config_.position_embedding_type;
  if (kind == PositionEmbedding::kRope || kind == PositionEmbedding::kYarn || config_.multi_latent_attention)
    rotary_frequencies_ = nn::inverse_frequencies(rotary_options(config_)).to(device);
}

nn::RotaryAngles Transformer::rotary_angles(const nn::ForwardContext& context) const {
  const nn::RotaryOptions options = rotary_options(config_);
  return nn::rotary_angles(rotary_frequencies_, context.positions, options.interleaved, options.attention_factor);
}

at::Tensor Transformer::hidden_states(const at::Tensor& input, const nn::ForwardContext& context) const {
  PHAROS_CHECK(parallel_.size() == mesh_.size(comm::MeshDim::kTensor), "the tensor-parallel group is missing");
  PHAROS_CHECK(context_parallel_.size() == mesh_.size(comm::MeshDim::kContext),
               "the context-parallel group is missing");
  PHAROS_CHECK(!has_experts_ || groups_.expert_both != nullptr ||
                   mesh_.size(comm::MeshDim::kExpert) * mesh_.size(comm::MeshDim::kExpertTensor) == 1,
               "the expert-parallel groups are missing");
  at::Tensor hidden = embedding_ ? embedding_->forward(input, context) : input.to(compute_type(config_));
  if (tap_) tap_("embed", embedding_ ? nn::embed(input, embedding_->words) * embedding_->scale : hidden);
  hidden = run_layers(hidden, context);
  if (final_layernorm_) hidden = final_layernorm_->forward(hidden);
  if (tap_ && final_layernorm_) tap_("final_norm", hidden);
  return hidden;
}

at::Tensor Transformer::run_layers(at::Tensor hidden, const nn::ForwardContext& context) const {
  nn::RotaryAngles angles;
  const bool rotary = rotary_frequencies_.defined();
  if (rotary) angles = rotary_angles(context);
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
  const at::Tensor logits = nn::column_linear(hidden, output_words(), nullptr, parallel_);
  if (!config_.final_logit_softcapping) return logits;
  return (logits / *config_.final_logit_softcapping).tanh() * *config_.final_logit_softcapping;
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

std::vector<at::Tensor> Transformer::prediction_losses(const at::Tensor& hidden,
                                                       const std::vector<PredictionInput>& inputs,
                                                       const nn::ForwardContext& context) const {
  PHAROS_CHECK(inputs.size() == prediction_layers_.size(), "one input is needed for each depth of prediction");
  std::vector<at::Tensor> losses;
  if (inputs.empty()) return losses;
  const bool rotary = rotary_frequencies_.defined();
  const nn::RotaryAngles angles = rotary ? rotary_angles(context) : nn::RotaryAngles{};
  const bool recomputes = config_.recompute_granularity == config::RecomputeGranularity::kFull;
  at::Tensor state = hidden;
  for (std::size_t depth = 0; depth < inputs.size(); ++depth) {
    const PredictionLayer& predictor = *prediction_layers_[depth];
    at::Tensor words = nn::embed_vocabulary(inputs[depth].tokens, *prediction_words_, parallel_);
    if (config_.scale_embeddings_by_hidden_size) words = words * std::sqrt(static_cast<double>(*config_.hidden_size));
    // By value, as in run_layers().
    const auto run = [&predictor, rotary, angles, context](const std::vector<at::Tensor>& given) {
      const at::Tensor joined =
          at::cat({predictor.embedding_norm.forward(given[1]), predictor.hidden_norm.forward(given[0])}, -1);
      return predictor.layer->forward(predictor.projection.forward(joined), rotary ? &angles : nullptr, context, 0);
    };
    state = recomputes && c10::GradMode::is_enabled() ? nn::recompute(run, {state, words}) : run({state, words});
    state = predictor.final_layernorm.forward(state);
    losses.push_back(nn::cross_entropy(own_logits(state), inputs[depth].labels, *config_.vocab_size, parallel_));
  }
  return losses;
}

std::vector<TransformerLayer*> Transformer::moe_layers() {
  std::vector<TransformerLayer*> found;
  const auto look_at = [&](TransformerLayer& layer) {
    if (layer.moe() != nullptr) found.push_back(&layer);
  };
  for (auto& layer : layers_) look_at(*layer);
  for (auto& predictor : prediction_layers_) look_at(*predictor->layer);
  return found;
}

nn::KeyValueCache Transformer::make_cache(std::int64_t batch, std::int64_t capacity) const {
  nn::KeyValueCache cache;
  for (const auto& layer : layers_) {
    const auto make = [&](const tensor::Parameter& like, std::int64_t heads, std::int64_t width) {
      return at::empty({batch, heads, capacity, width}, like.data.options().requires_grad(false));
    };
    if (const auto* attention = std::get_if<nn::SelfAttention>(&layer->self_attention)) {
      const tensor::Parameter& like = attention->qkv.weight;
      const std::int64_t heads = attention->options.num_kv_heads, width = attention->options.head_width;
      cache.layers.push_back({make(like, heads, width), make(like, heads, width)});
    } else {
      const auto& latent = std::get<nn::LatentAttention>(layer->self_attention);
      const tensor::Parameter& like = latent.linear_kv_down_proj.weight;
      cache.layers.push_back({make(like, 1, latent.kv_rank), make(like, 1, latent.rotary_width)});
    }
  }
  return cache;
}

}  // namespace pharos::model
