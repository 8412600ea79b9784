#include "pharos/lens/otlp/utf8.h"

#include <cstdint>
#include <cstring>

namespace pharos::lens::otlp {
namespace {

/// The bytes that may follow a lead byte: how many, and the range of the first of them (table 3-7).
struct Sequence {
  int num_following;
  unsigned char lowest;
  unsigned char highest;
};

Sequence sequence_of(unsigned char lead) {
  if (lead < 0x80) return {0, 0, 0};
  if (lead >= 0xC2 && lead <= 0xDF) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

struct Step {
  std::size_t num_bytes;  ///< of the character, or of the part that is to be replaced
  bool is_valid;
};

Step step(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
  const Sequence sequence = sequence_of(byte(position));
  if (sequence.num_following < 0) return {1, false};
  for (int i = 1; i <= sequence.num_following; ++i) {
    const std::size_t index = position + static_cast<std::size_t>(i);
    const unsigned char lowest = i == 1 ? sequence.lowest : 0x80;
    const unsigned char highest = i == 1 ? sequence.highest : 0xBF;
    if (index >= text.size() || byte(index) < lowest || byte(index) > highest) {
      return {static_cast<std::size_t>(i), false};
    }
  }
  return {static_cast<std::size_t>(sequence.num_following) + 1, true};
}

/// Number of leading ASCII bytes, eight at a time: nearly every key and value is nothing else.
std::size_t ascii_prefix(std::string_view text, std::size_t position) {
  while (position + 8 <= text.size()) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + position, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
    position += 8;
  }
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

}  // namespace

bool is_utf8(std::string_view text) {
  std::size_t position = 0;
  while ((position = ascii_prefix(text, position)) < text.size()) {
    const Step next = step(text, position);
    if (!next.is_valid) return false;
    position += next.num_bytes;
  }
  return true;
}

std::string repair_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size() + 8);
  for (std::size_t position = 0; position < text.size();) {
    const Step next = step(text, position);
    repaired += next.is_valid ? text.substr(position, next.num_bytes) : std::string_view("\xEF\xBF\xBD");
    position += next.num_bytes;
  }
  return repaired;
}

}  // namespace pharos::lens::otlp
