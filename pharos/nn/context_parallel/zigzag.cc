#include "pharos/nn/context_parallel/zigzag.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "pharos/base/error.h"

namespace pharos::nn {

std::array<TokenRange, 2> zigzag_ranges(std::int64_t tokens, std::int64_t rank, std::int64_t size) {
  PHAROS_CHECK(tokens % (2 * size) == 0,
               std::to_string(tokens) + " tokens do not divide by 2 x " + std::to_string(size) + " context ranks");
  const std::int64_t part = tokens / (2 * size);
  return {{{rank * part, part}, {(2 * size - 1 - rank) * part, part}}};
}

at::Tensor zigzag_slice(const at::Tensor& whole, std::int64_t axis, std::int64_t rank, std::int64_t size) {
  if (size == 1) return whole;
  const auto [early, late] = zigzag_ranges(whole.size(axis), rank, size);
  return at::cat({whole.narrow(axis, early.first, early.count), whole.narrow(axis, late.first, late.count)}, axis);
}

std::vector<TokenRange> zigzag_runs(std::int64_t tokens, std::int64_t rank, std::int64_t size, std::int64_t first,
                                    std::int64_t count) {
  if (size == 1) return {{first, count}};
  std::vector<TokenRange> runs;
  std::int64_t place = 0;  // of the run among the local tokens
  for (const TokenRange& range : zigzag_ranges(tokens, rank, size)) {
    const std::int64_t begin = std::max(first, place), end = std::min(first + count, place + range.count);
    if (begin < end) runs.push_back({range.first + begin - place, end - begin});
    place += range.count;
  }
  return runs;
}

std::vector<HalfBlock> half_blocks(std::int64_t tokens, std::int64_t rank, std::int64_t source, std::int64_t size,
                                   std::int64_t window) {
  const auto queries = zigzag_ranges(tokens, rank, size), keys = zigzag_ranges(tokens, source, size);
  std::vector<HalfBlock> blocks;
  for (std::size_t q = 0; q < 2; ++q) {
    for (std::size_t k = 0; k < 2; ++k) {
      const std::int64_t nearest = queries[q].first - (keys[k].first + keys[k].count - 1);  // first query to last key
      if (queries[q].first < keys[k].first || (window > 0 && nearest >= window)) continue;
      blocks.push_back({static_cast<std::int64_t>(q), static_cast<std::int64_t>(k), queries[q].first, keys[k].first});
    }
  }
  std::stable_partition(blocks.begin(), blocks.end(), [](const HalfBlock& block) { return block.is_diagonal(); });
  return blocks;
}

}  // namespace pharos::nn
