// Randomness of a router. A value depends on seed, step, the router's name and the place of its token in the global
// batch, not on rank or microbatch, and is drawn again where it is needed again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "pharos/nn/context.h"
#include "pharos/nn/parallel/tensor_parallel.h"

namespace pharos::nn {

/// Where the tokens of this rank lie in whole sequences.
struct TokenPlaces {
  std::int64_t num_tokens = 0;     ///< of a whole sequence
  std::vector<TokenRange> ranges;  ///< of this rank's tokens, in their order
};

/// `count`: tokens of a sequence on this rank.
TokenPlaces token_places(std::int64_t count, const TensorParallel& parallel, const ContextParallel& context_parallel);

/// hidden [batch, tokens, width] times uniform values from [1 - epsilon, 1 + epsilon], new in each step.
at::Tensor jitter(const at::Tensor& hidden, double epsilon, std::string_view name, const ForwardContext& context,
                  const TokenPlaces& places);

/// Normal values instead of logits [batch, tokens, experts], new in each step; gradients go to the logits as if they
/// had been these values.
at::Tensor random_logits(const at::Tensor& logits, std::string_view name, const ForwardContext& context,
                         const TokenPlaces& places);

/// logits [batch, tokens, experts] plus a normal value per expert of standard deviation |deviation|: new in each step,
/// with a negative deviation the same in all steps.
at::Tensor biased_logits(const at::Tensor& logits, double deviation, std::string_view name,
                         const ForwardContext& context);

}  // namespace pharos::nn
