// Experts that take a limited number of tokens (bridge-config.md 8.4).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pharos/config/enums.h"

namespace pharos::nn {

/// ⌈tokens · topk / experts · factor⌉, at most `tokens`: more than that never choose one expert.
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t topk, std::int64_t num_experts, double factor);

/// Choices beyond the capacity of their expert: bool [tokens, topk]. kProbabilities keeps those of the highest
/// probability (of equal ones the earliest token), kPosition those of the earliest tokens. experts, probabilities:
/// [tokens, topk].
at::Tensor beyond_capacity(const at::Tensor& experts, const at::Tensor& probabilities, std::int64_t num_experts,
                           std::int64_t capacity, config::TokenDropPolicy policy);

}  // namespace pharos::nn
