#include "pharos/data/index/md5.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace pharos::data {
namespace {

constexpr int kShifts[4][4] = {{7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};

/// RFC 1321, 3.4: T[i] = floor(2^32 * |sin(i + 1)|).
std::array<std::uint32_t, 64> sine_table() {
  std::array<std::uint32_t, 64> table{};
  for (int i = 0; i < 64; ++i)
    table[i] = static_cast<std::uint32_t>(std::floor(4294967296.0 * std::fabs(std::sin(i + 1))));
  return table;
}

void absorb_block(std::array<std::uint32_t, 4>& digest, const char* block) {
  static const std::array<std::uint32_t, 64> kSine = sine_table();
  std::uint32_t words[16];
  std::memcpy(words, block, sizeof words);  // little endian, as the platform is
  auto [a, b, c, d] = digest;
  for (int i = 0; i < 64; ++i) {
    const int round = i / 16;
    std::uint32_t mixed = 0;
    int word = 0;
    switch (round) {
      case 0:
        mixed = (b & c) | (~b & d), word = i;
        break;
      case 1:
        mixed = (d & b) | (~d & c), word = (5 * i + 1) % 16;
        break;
      case 2:
        mixed = b ^ c ^ d, word = (3 * i + 5) % 16;
        break;
      default:
        mixed = c ^ (b | ~d), word = (7 * i) % 16;
        break;
    }
    const std::uint32_t next = b + std::rotl(a + mixed + kSine[i] + words[word], kShifts[round][i % 4]);
    a = d, d = c, c = b, b = next;
  }
  digest[0] += a, digest[1] += b, digest[2] += c, digest[3] += d;
}

}  // namespace

std::string md5_hex(std::string_view text) {
  static_assert(std::endian::native == std::endian::little);
  std::string padded(text);
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  const std::uint64_t num_bits = 8 * static_cast<std::uint64_t>(text.size());
  padded.append(reinterpret_cast<const char*>(&num_bits), sizeof num_bits);

  std::array<std::uint32_t, 4> digest = {0x67452301U, 0xefcdab89U, 0x98badcfeU, 0x10325476U};
  for (std::size_t at = 0; at < padded.size(); at += 64) absorb_block(digest, padded.data() + at);

  std::string hex;
  for (const std::uint32_t word : digest) {
    for (int byte = 0; byte < 4; ++byte) {
      const std::uint32_t value = (word >> (8 * byte)) & 0xff;
      hex += "0123456789abcdef"[value >> 4];
      hex += "0123456789abcdef"[value & 15];
    }
  }
  return hex;
}

}  // namespace pharos::data
