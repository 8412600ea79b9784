// Randomness by name, not by rank: a counter-based generator keyed by (seed, name) and indexed by the position in the
// global tensor, so that a value does not depend on which rank draws it, or in what order.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace pharos::tensor {

/// Philox4x32-10 (Salmon et al., SC 2011): ten rounds on a 128-bit counter under a 64-bit key.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// 64-bit key of a stream: a hash of the seed and the stream's name (SplitMix64 over FNV-1a).
std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

/// Fills `out`, the slice at `offset` of a logical tensor of `global_shape`, with normal values of mean 0.
/// out: contiguous float32 on the CPU, any shape; offset and out.sizes() have global_shape's rank.
void fill_normal(at::Tensor& out, double standard_deviation, std::uint64_t key,
                 const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset);

/// The same with uniform values between low and high.
void fill_uniform(at::Tensor& out, double low, double high, std::uint64_t key,
                  const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset);

/// Dropout mask of the slice at `offset` of a logical tensor of `global_shape`: 0 with `probability`, else
/// 1 / (1 - probability). Returns [shape] float32 on the CPU.
at::Tensor dropout_mask(const std::vector<std::int64_t>& shape, double probability, std::uint64_t key,
                        const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset);

}  // namespace pharos::tensor
