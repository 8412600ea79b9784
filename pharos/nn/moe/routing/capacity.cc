#include "pharos/nn/moe/routing/capacity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace pharos::nn {

std::int64_t expert_capacity(std::int64_t tokens, std::int64_t topk, std::int64_t num_experts, double factor) {
  const double mean = static_cast<double>(tokens * topk) / static_cast<double>(num_experts);
  // A large factor gives more than an integer holds: the smaller is taken first.
  return static_cast<std::int64_t>(std::min(static_cast<double>(tokens), std::ceil(mean * factor)));
}

at::Tensor beyond_capacity(const at::Tensor& experts, const at::Tensor& probabilities, std::int64_t num_experts,
                           std::int64_t capacity, config::TokenDropPolicy policy) {
  const at::Tensor choices = experts.flatten();
  // Choices in the order in which they are served, then, keeping that order, by expert.
  at::Tensor order;
  if (policy == config::TokenDropPolicy::kProbabilities) {
    const at::Tensor first = at::argsort(probabilities.detach().flatten(), /*stable=*/true, 0, /*descending=*/true);
    order = first.index_select(0, at::argsort(choices.index_select(0, first), /*stable=*/true));
  } else {
    order = at::argsort(choices, /*stable=*/true);
  }
  const at::Tensor sorted = choices.index_select(0, order);
  const at::Tensor starts = at::searchsorted(sorted, at::arange(num_experts, choices.options()));
  const at::Tensor place = at::arange(choices.size(0), choices.options()) - starts.index_select(0, sorted);
  return at::empty_like(choices, at::kBool).index_copy_(0, order, place >= capacity).view(experts.sizes());
}

}  // namespace pharos::nn
