#include "pharos/train/data/context_slice.h"

#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::train {

Microbatch slice_context(const Microbatch& whole, std::int64_t rank, std::int64_t size) {
  Microbatch part = whole;
  for (at::Tensor* tensor : {&part.tokens, &part.labels, &part.loss_mask, &part.positions})
    *tensor = nn::zigzag_slice(*tensor, -1, rank, size);
  return part;
}

}  // namespace pharos::train
