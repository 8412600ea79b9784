// What one forward pass over a microbatch needs beside weights and activations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace pharos::nn {

/// Keys and values of the tokens seen so far, per layer, for generation. Tensors: [batch, kv heads, capacity, width];
/// of latent attention: keys are the normed latents [batch, 1, capacity, kv rank], values the rotated shared keys
/// [batch, 1, capacity, rotary width].
struct KeyValueCache {
  struct Layer {
    at::Tensor keys, values;
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  ///< tokens held; advanced by the caller after a forward pass
};

/// A run of neighbouring tokens of a whole sequence.
struct TokenRange {
  std::int64_t first = 0, count = 0;
};

struct ForwardContext {
  at::Tensor positions;    ///< int64 [tokens], or [batch, tokens] when documents restart their positions; of this
                           ///< context-parallel rank's tokens
  at::Tensor segments;     ///< undefined, or int64 [batch, tokens of the whole sequence]: tokens see those of their own
                           ///< number only (packed documents)
  bool training = false;   ///< dropout on
  std::uint64_t seed = 0;  ///< of dropout
  std::int64_t step = 0;   ///< of dropout
  std::int64_t first_sample = 0;  ///< place of this microbatch's first sample in the global batch (dropout)
  /// d(what is minimised) / d(auxiliary loss of a layer for this microbatch, such as the balance of its router).
  double auxiliary_loss_scale = 1;
  KeyValueCache* cache = nullptr;
};

/// Zeroes elements with `probability` and scales the others by 1 / (1 - probability). The mask depends on seed, step,
/// `name` and each element's place in the global batch, not on rank or microbatch; it is drawn again in the backward
/// pass instead of being kept. input: [batch, …]; `global_shape`, `offset`: extent of the axes after the batch axis
/// over all ranks and where this rank's part starts. Returns input itself when there is nothing to drop.
at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context,
                   std::vector<std::int64_t> global_shape, std::vector<std::int64_t> offset);

/// dropout() of tokens [batch, tokens, width] that are those of `ranges`, in order, of a sequence of `num_tokens`.
at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context,
                   std::int64_t num_tokens, const std::vector<TokenRange>& ranges);

/// The factors that dropout() applies, 0 or 1 / (1 - probability): [shape] of `like`'s type; like: [batch, …].
at::Tensor dropout_mask(const at::Tensor& like, double probability, std::string_view name,
                        const ForwardContext& context, std::vector<std::int64_t> global_shape,
                        std::vector<std::int64_t> offset);

/// dropout() of a tensor whose axes after the batch are whole on this rank.
at::Tensor dropout(const at::Tensor& input, double probability, std::string_view name, const ForwardContext& context);

}  // namespace pharos::nn
