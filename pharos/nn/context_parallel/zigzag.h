// Context parallelism divides the tokens of a sequence over n ranks. Under a causal mask a token costs as much as it
// has tokens before it, so contiguous parts would leave the first rank idle. Instead the sequence is cut into 2n equal
// parts and rank r holds parts r and 2n-1-r (Megatron's order): every rank meets as much of the mask as any other.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

#include "pharos/nn/context.h"

namespace pharos::nn {

/// The two runs of a sequence of `tokens` tokens that rank `rank` of `size` holds, in the order it holds them.
/// InternalError unless tokens divide by 2 * size.
std::array<TokenRange, 2> zigzag_ranges(std::int64_t tokens, std::int64_t rank, std::int64_t size);

/// This rank's part of `whole` along `axis`, which has all tokens. Returns `whole` itself when size is 1.
at::Tensor zigzag_slice(const at::Tensor& whole, std::int64_t axis, std::int64_t rank, std::int64_t size);

/// The runs that local tokens [first, first + count) of rank `rank` make up; `tokens` counts the whole sequence.
std::vector<TokenRange> zigzag_runs(std::int64_t tokens, std::int64_t rank, std::int64_t size, std::int64_t first,
                                    std::int64_t count);

/// A product of one half of a rank's queries with one half of a rank's keys, by places in the whole sequence.
struct HalfBlock {
  std::int64_t query_half = 0, key_half = 0;    ///< 0 or 1: which of the rank's two runs
  std::int64_t first_query = 0, first_key = 0;  ///< of the whole sequence
  bool is_diagonal() const { return first_query == first_key; }
};

/// What queries of `rank` have to do with keys of `source`: half-blocks in which some key is neither later than its
/// query nor outside of the window (0: none), those on the diagonal first. Without a window three when source is rank,
/// else two.
std::vector<HalfBlock> half_blocks(std::int64_t tokens, std::int64_t rank, std::int64_t source, std::int64_t size,
                                   std::int64_t window);

}  // namespace pharos::nn
