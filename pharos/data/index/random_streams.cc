#include "pharos/data/index/random_streams.h"

#include <array>
#include <bit>
#include <limits>
#include <numeric>

namespace pharos::data {
namespace {

using Uint128 = unsigned __int128;

constexpr Uint128 kPcgMultiplier = (static_cast<Uint128>(2549297995355413924ULL) << 64) | 4865540595714422341ULL;

/// From this size on PyTorch draws 64-bit words, the high half first, and shuffles from the inside out.
constexpr std::int64_t kWideRandpermSize = std::numeric_limits<std::uint32_t>::max() / 20;

/// One step of the hash that numpy's SeedSequence mixes with (O'Neill, seed_seq_fe).
class SeedHash {
 public:
  SeedHash(std::uint32_t constant, std::uint32_t multiplier) : constant_(constant), multiplier_(multiplier) {}
  std::uint32_t operator()(std::uint32_t value) {
    value ^= constant_;
    constant_ *= multiplier_;
    value *= constant_;
    return value ^ (value >> 16);
  }

 private:
  std::uint32_t constant_;
  std::uint32_t multiplier_;
};

/// SeedSequence(seed).generate_state(8, uint32).
std::array<std::uint32_t, 8> seed_words(std::uint32_t seed) {
  SeedHash absorb(0x43b0d7e5U, 0x931e8875U);
  std::array<std::uint32_t, 4> pool{};
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = absorb(i == 0 ? seed : 0);
  for (std::size_t source = 0; source < pool.size(); ++source) {
    for (std::size_t target = 0; target < pool.size(); ++target) {
      if (source == target) continue;
      const std::uint32_t mixed = 0xca01f9ddU * pool[target] - 0x4973f715U * absorb(pool[source]);
      pool[target] = mixed ^ (mixed >> 16);
    }
  }
  SeedHash emit(0x8b51f9ddU, 0x58f38dedU);
  std::array<std::uint32_t, 8> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = emit(pool[i % pool.size()]);
  return words;
}

}  // namespace

std::uint64_t NumpyLegacyRandom::draw(std::uint64_t maximum) {
  if (maximum == 0) return 0;
  const std::uint64_t mask = std::numeric_limits<std::uint64_t>::max() >> std::countl_zero(maximum);
  std::uint64_t value = 0;
  do {
    value = engine_();
    if (maximum > std::numeric_limits<std::uint32_t>::max()) value = (value << 32) | engine_();
    value &= mask;
  } while (value > maximum);
  return value;
}

NumpyPcg64::NumpyPcg64(std::uint32_t seed) {
  const auto words = seed_words(seed);
  const auto word64 = [&](std::size_t i) {
    return (static_cast<std::uint64_t>(words[2 * i + 1]) << 32) | words[2 * i];
  };
  const Uint128 initial_state = (static_cast<Uint128>(word64(0)) << 64) | word64(1);
  const Uint128 stream = (static_cast<Uint128>(word64(2)) << 64) | word64(3);
  increment_ = (stream << 1) | 1;
  state_ = increment_;  // one step from state 0
  state_ += initial_state;
  state_ = state_ * kPcgMultiplier + increment_;
}

std::uint64_t NumpyPcg64::next_uint64() {
  state_ = state_ * kPcgMultiplier + increment_;
  const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

std::uint32_t NumpyPcg64::next_uint32() {
  if (has_high_half_) {
    has_high_half_ = false;
    return high_half_;
  }
  const std::uint64_t word = next_uint64();
  has_high_half_ = true;
  high_half_ = static_cast<std::uint32_t>(word >> 32);
  return static_cast<std::uint32_t>(word);
}

std::int32_t NumpyPcg64::integer(std::int32_t low, std::int32_t high) {
  const auto range = static_cast<std::uint32_t>(static_cast<std::int64_t>(high) - low);
  if (range == 1) return low;
  std::uint64_t product = static_cast<std::uint64_t>(next_uint32()) * range;
  if (static_cast<std::uint32_t>(product) < range) {
    const std::uint32_t threshold = (std::numeric_limits<std::uint32_t>::max() - (range - 1)) % range;
    while (static_cast<std::uint32_t>(product) < threshold) product = static_cast<std::uint64_t>(next_uint32()) * range;
  }
  return static_cast<std::int32_t>(low + static_cast<std::int64_t>(product >> 32));
}

std::vector<std::int64_t> torch_randperm(std::int64_t size, std::uint64_t seed) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size));
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  if (size >= kWideRandpermSize) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint64_t word = engine();
      word = (word << 32) | engine();
      const auto other = static_cast<std::size_t>(word % (i + 1));
      values[i] = values[other];
      values[other] = static_cast<std::int64_t>(i);
    }
    return values;
  }
  std::iota(values.begin(), values.end(), 0);
  for (std::size_t i = 0; i + 1 < values.size(); ++i) std::swap(values[i], values[i + engine() % (values.size() - i)]);
  return values;
}

}  // namespace pharos::data
