// The three random number streams whose draws must repeat those of numpy and PyTorch bit for bit.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace pharos::data {

/// numpy.random.RandomState(seed): MT19937 with the classic one-integer initialiser, bounded draws by mask and
/// rejection.
class NumpyLegacyRandom {
 public:
  explicit NumpyLegacyRandom(std::uint32_t seed) : engine_(seed) {}

  /// Uniform in [0, maximum]: 32-bit words are masked to the bits of `maximum` and drawn again until they fit; from
  /// 2^32 on two words make a draw, the high one first.
  std::uint64_t draw(std::uint64_t maximum);

  /// Fisher-Yates from the end, as numpy's legacy shuffle.
  template <typename Value>
  void shuffle(std::span<Value> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[draw(i)]);
  }

 private:
  std::mt19937 engine_;
};

/// numpy.random.default_rng(seed): PCG64 (XSL-RR 128/64) seeded through SeedSequence, for seeds below 2^32.
class NumpyPcg64 {
 public:
  explicit NumpyPcg64(std::uint32_t seed);

  /// 32 bits: the low half of a 64-bit output, then its high half.
  std::uint32_t next_uint32();

  /// `integers(low, high, dtype=int32)`: uniform in [low, high) by Lemire's method on 32-bit words.
  std::int32_t integer(std::int32_t low, std::int32_t high);

 private:
  using Uint128 = unsigned __int128;
  std::uint64_t next_uint64();

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  bool has_high_half_ = false;
  std::uint32_t high_half_ = 0;
};

/// torch.randperm(size, generator=torch.Generator().manual_seed(seed)) on the CPU.
std::vector<std::int64_t> torch_randperm(std::int64_t size, std::uint64_t seed);

}  // namespace pharos::data
