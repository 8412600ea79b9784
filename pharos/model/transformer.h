// A decoder-only transformer as plain structs of layers, built from ModelConfig for the part of the model that one
// rank's stage holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/run_config.h"
#include "pharos/nn/attention.h"
#include "pharos/nn/embedding.h"
#include "pharos/nn/latent_attention.h"
#include "pharos/nn/linear.h"
#include "pharos/nn/mlp.h"
#include "pharos/nn/moe/moe.h"
#include "pharos/nn/norm.h"
#include "pharos/nn/rotary.h"
#include "pharos/tensor/parameter.h"

namespace pharos::model {

/// What a stage holds: layers [first_layer, first_layer + num_layers), and the two ends of the model or not.
struct Stage {
  std::int64_t first_layer = 0;
  std::int64_t num_layers = 0;
  bool embedding = true;
  bool output = true;
  /// Layers of multi-token prediction, between the last layer and the output; only where `output` is.
  std::int64_t num_prediction_layers = 0;
  /// The embedding of another stage on this rank, which the output layer shares with it when they are tied, and
  /// multi-token prediction always. Without it each of the two ends has weights of its own (Parameter::tie).
  tensor::Parameter* tied_words = nullptr;
};

/// All layers on one stage.
Stage whole_model(const config::ModelConfig& config);

struct TransformerLayer {
  std::int64_t number = 1;  ///< 1-based, over the whole model
  std::string name;         ///< "decoder.layers.0"
  nn::Norm input_layernorm;
  std::variant<nn::SelfAttention, nn::LatentAttention> self_attention;
  std::optional<nn::Norm> post_self_attn_layernorm;  ///< on the attention's output
  nn::Norm pre_mlp_layernorm;
  std::variant<nn::Mlp, nn::Moe> mlp;
  std::optional<nn::Norm> post_mlp_layernorm;  ///< on the MLP's output
  double hidden_dropout = 0;
  bool recompute_mlp = false;
  nn::TensorParallel parallel;
  nn::ContextParallel context_parallel;

  const nn::AttentionOptions& attention_options() const;
  nn::Moe* moe() { return std::get_if<nn::Moe>(&mlp); }

  /// hidden: [batch, tokens, hidden] -> the same shape; under sequence parallelism this rank's tokens.
  at::Tensor forward(const at::Tensor& hidden, const nn::RotaryAngles* angles, const nn::ForwardContext& context,
                     std::size_t index) const;
};

/// One depth of multi-token prediction (DeepSeek-V3, 2024, 2.2): from the hidden state of a token and the embedding of
/// a later one, the hidden state that predicts the token after that.
struct PredictionLayer {
  nn::Norm embedding_norm, hidden_norm;
  nn::Linear projection;  ///< [hidden, 2 hidden], of embedding | hidden, whole on every tensor-parallel rank
  std::unique_ptr<TransformerLayer> layer;
  nn::Norm final_layernorm;
};

/// What multi-token prediction at one depth k = 1, 2, … reads: tokens and labels of t + k at the place of t.
struct PredictionInput {
  at::Tensor tokens;  ///< int64 [batch, tokens]
  at::Tensor labels;  ///< int64 [batch, tokens]
};

/// Observes activations by name ("embed", "layer.0", …, "final_norm") for checks against a reference.
using ActivationTap = std::function<void(const std::string& name, const at::Tensor& value)>;

/// Ranks that compute a stage together, by dimension; null where the mesh has size 1. Without them a divided model can
/// be declared, loaded and saved, but not run.
struct ParallelGroups {
  comm::Group* tensor = nullptr;
  comm::Group* context = nullptr;  ///< divides the tokens of a sequence, in zigzag order (nn/context_parallel/zigzag.h)
  comm::Group* expert = nullptr;   ///< EP: experts are divided
  comm::Group* expert_tensor = nullptr;  ///< ETP: each expert is divided
  comm::Group* expert_both = nullptr;    ///< ETP × EP
  comm::Group* tokens = nullptr;         ///< TP × CP: ranks that divide the tokens of a microbatch
  comm::Group* balance = nullptr;        ///< TP × CP × DP: ranks that divide the tokens of a global batch
};

class Transformer {
 public:
  /// Declares every parameter on the meta device; nothing is allocated. `config` must be valid and complete.
  Transformer(const config::ModelConfig& config, const Stage& stage, const comm::Mesh& mesh, std::int64_t rank,
              const ParallelGroups& groups = {});
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  const config::ModelConfig& config() const { return config_; }
  const Stage& stage() const { return stage_; }
  const comm::Mesh& mesh() const { return mesh_; }
  std::int64_t rank() const { return rank_; }

  /// Every parameter once, in the order of the forward pass; addresses are stable.
  std::vector<tensor::Parameter*> parameters();

  /// Allocates and fills the parameters from `seed`.
  void materialize(at::Device device, std::uint64_t seed);
  /// Allocates the parameters, zeroed, for weights that come from a file.
  void allocate(at::Device device);

  /// tokens: int64 [batch, tokens] on the first stage, else the hidden states [batch, tokens, hidden] of the stage
  /// before. Returns the hidden states [batch, tokens, hidden], after the last norm on the last stage. All tokens are
  /// those of this context-parallel rank; under sequence parallelism it divides the hidden states once more, ids,
  /// positions and labels are those of all its tokens.
  at::Tensor hidden_states(const at::Tensor& input, const nn::ForwardContext& context) const;

  /// hidden: as hidden_states() returns them on the last stage. Returns logits [batch, tokens, padded vocabulary].
  /// For models that are whole on this rank.
  at::Tensor logits(const at::Tensor& hidden) const;

  /// The columns of logits() that this tensor-parallel rank has: [batch, tokens, padded vocabulary / ranks]. Under
  /// sequence parallelism of all tokens.
  at::Tensor own_logits(const at::Tensor& hidden) const;

  /// Cross entropy of each token, float32 [batch, tokens]. labels: int64 [batch, tokens].
  at::Tensor token_losses(const at::Tensor& hidden, const at::Tensor& labels) const;

  /// Cross entropy of each token at each depth of multi-token prediction, float32 [batch, tokens]; empty without.
  /// hidden: as hidden_states() returns them on the last stage; inputs: one per depth.
  std::vector<at::Tensor> prediction_losses(const at::Tensor& hidden, const std::vector<PredictionInput>& inputs,
                                            const nn::ForwardContext& context) const;
  std::int64_t num_prediction_layers() const { return stage_.num_prediction_layers; }

  /// The layers of this stage that have experts, those of multi-token prediction included, in order.
  std::vector<TransformerLayer*> moe_layers();

  /// An empty cache for `batch` sequences of at most `capacity` tokens.
  nn::KeyValueCache make_cache(std::int64_t batch, std::int64_t capacity) const;

  /// For models that are whole on this rank.
  void set_activation_tap(ActivationTap tap);

 private:
  /// The output layer's words are those of the embedding: here, on another stage of this rank, or a copy of those of
  /// another rank, with the same first values. Multi-token prediction reads the embedding in the same way.
  void tie_words();
  void make_rotary_frequencies(at::Device device);
  nn::RotaryAngles rotary_angles(const nn::ForwardContext& context) const;
  const tensor::Parameter& output_words() const;
  at::Tensor run_layers(at::Tensor hidden, const nn::ForwardContext& context) const;

  config::ModelConfig config_;
  Stage stage_;
  comm::Mesh mesh_;
  std::int64_t rank_;
  nn::TensorParallel parallel_;
  nn::ContextParallel context_parallel_;
  ParallelGroups groups_;
  bool has_experts_ = false;
  std::optional<nn::Embedding> embedding_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::vector<std::unique_ptr<PredictionLayer>> prediction_layers_;
  std::optional<nn::Norm> final_layernorm_;
  std::optional<tensor::Parameter> output_layer_;  ///< absent when an embedding on this rank has the words
  /// The words that multi-token prediction reads, and where it keeps a copy of them, if it does.
  tensor::Parameter* prediction_words_ = nullptr;
  std::optional<tensor::Parameter> prediction_words_copy_;
  at::Tensor rotary_frequencies_;
  ActivationTap tap_;
};

}  // namespace pharos::model
