#include "pharos/train/data/prediction.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::train {
namespace {

/// What is at t + places comes to t, zero to the end; along the last axis.
at::Tensor shifted(const at::Tensor& tensor, std::int64_t places) {
  const std::int64_t length = tensor.size(-1), kept = std::max<std::int64_t>(0, length - places);
  at::Tensor result = at::zeros_like(tensor);
  result.narrow(-1, 0, kept).copy_(tensor.narrow(-1, length - kept, kept));
  return result;
}

}  // namespace

std::vector<Prediction> predictions_of(const Microbatch& whole, std::int64_t num_depths, std::int64_t rank,
                                       std::int64_t size) {
  std::vector<Prediction> predictions;
  const auto part = [&](const at::Tensor& tensor) { return nn::zigzag_slice(tensor, -1, rank, size); };
  for (std::int64_t depth = 1; depth <= num_depths; ++depth) {
    const at::Tensor mask = shifted(whole.loss_mask, depth);
    predictions.push_back(
        {{part(shifted(whole.tokens, depth)), part(shifted(whole.labels, depth))}, part(mask), mask.sum()});
  }
  return predictions;
}

}  // namespace pharos::train
