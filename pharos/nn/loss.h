// Token losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pharos::nn {

/// Cross entropy of every token, in float32: logsumexp(logits) - logits[label].
/// logits: [..., padded vocabulary]; labels: int64 [...]. Columns from `vocab_size` on are padding and take no part.
/// Float32 logits are overwritten (with log-probabilities, then with their gradient): hand over a tensor nobody else
/// reads.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, std::int64_t vocab_size);

}  // namespace pharos::nn
