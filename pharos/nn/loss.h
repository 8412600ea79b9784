// Token losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pharos/nn/parallel/tensor_parallel.h"

namespace pharos::nn {

/// Cross entropy of every token, in float32: logsumexp(logits) - logits[label].
/// logits: [..., padded vocabulary / ranks], the columns of this rank; labels: int64 [...], the same on all ranks, as
/// is the result. Columns from `vocab_size` on are padding and take no part. Float32 logits are overwritten (with
/// log-probabilities or what gives probabilities, then with their gradient): hand over a tensor nobody else reads.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t vocab_size,
                         const TensorParallel& parallel = {});

}  // namespace pharos::nn
