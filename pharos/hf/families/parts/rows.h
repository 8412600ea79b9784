// Rows of which the tables of families are made.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "pharos/hf/families/family.h"
#include "pharos/hf/families/parts/reader.h"

namespace pharos::hf {

/// A field that has this value in the whole family.
template <typename T, typename V>
Row constant(T config::ModelConfig::*member, V value) {
  return {[=](Reader&, config::ModelConfig& model) { model.*member = T(value); }};
}

/// A whole number above 0 that must be there. T: int64 or an optional of it.
template <typename T>
Row count(const char* key, T config::ModelConfig::*member, std::int64_t most = config::kMostWidth) {
  return {[=](Reader& reader, config::ModelConfig& model) {
            if (const auto value = reader.required_count(key, most)) model.*member = *value;
          },
          [=](const config::ModelConfig& model, nlohmann::json& written) {
            if (const std::optional<std::int64_t> value = model.*member)
              written[std::string(key).substr(0, std::string(key).find('|'))] = *value;
          }};
}

/// A number above 0; `otherwise` when the key is absent.
Row positive(const char* key, double config::ModelConfig::*member, double otherwise);
/// A number from 0.
Row not_negative(const char* key, double config::ModelConfig::*member, double otherwise);
/// A probability below 1.
Row dropout(const char* key, double config::ModelConfig::*member, double otherwise);
Row flag(const char* key, bool config::ModelConfig::*member, bool otherwise);
/// A number above 0, or null for none; `otherwise` when the key is absent.
Row positive_or_null(const char* key, std::optional<double> config::ModelConfig::*member,
                     std::optional<double> otherwise);
/// A key that is only supported with this value, which is what its absence means. Null is not written.
Row must_be(const char* key, nlohmann::json value);
/// Activation of the MLP by its name in transformers.
Row activation(const char* key, const char* otherwise);

/// The rotary embedding of a family.
struct Rotary {
  double theta = 1e4;           ///< of a file without one
  const char* absent = "{}";    ///< parameters of a file without any, as JSON
  bool may_be_partial = false;  ///< the family's code rotates a part of each head (partial_rotary_factor)
};
/// rope_parameters, or rope_theta and rope_scaling. With multi-latent attention (set by an earlier row) default and
/// yarn, else default, linear, llama3 and yarn.
Row rotary(Rotary defaults);

/// What all that descends from Llama has in common: geometry, RMSNorm, rotary positions, gated MLP, no dropout but the
/// attention's, no biases. Zeros: as many key/value heads as heads; hidden_size / heads.
struct LlamaLike {
  std::int64_t num_key_value_heads = 0;  ///< of a file without, here and below
  std::int64_t head_dim = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  Rotary rotary = {};
};
std::vector<Row> llama_like(const LlamaLike& defaults);

/// attention_bias: on q, k, v and the output projection.
Row attention_bias(bool otherwise);
/// mlp_bias: in the MLP.
Row mlp_bias(bool otherwise);

/// Sliding windows, W tokens with the token itself (ModelConfig::window_size is [W - 1, 0]).
/// … in every layer; `otherwise` when the key is absent, null for none.
Row window_in_every_layer(std::optional<std::int64_t> otherwise);
/// … in those of layer_types or, without it, in every layer; `otherwise` when the key is absent, null for none.
Row window_by_layer_or_in_every(std::int64_t otherwise);
/// … in every layer if use_sliding_window.
Row window_if_used();
/// … if use_sliding_window, in those of layer_types or, without it, from layer max_window_layers on.
Row window_in_upper_layers();
/// … in those of layer_types or, without it, in every other one from the first.
Row window_in_other_layers(std::int64_t otherwise);

/// Experts (bridge-config.md 8.2). A token's weights are the softmax over the chosen experts' logits.
Row softmax_over_chosen();
/// The loss that balances experts, of type "aux_loss", with its coefficient.
Row balancing_loss(const char* key, double otherwise);
/// Experts have the width of a dense MLP, intermediate_size, and every layer has them.
Row experts_in_every_layer();

/// `base` followed by `more`.
template <typename T>
std::vector<T> joined(std::vector<T> base, const std::vector<std::type_identity_t<T>>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

}  // namespace pharos::hf
