#include "pharos/base/untrusted/printable.h"

namespace pharos::base {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : '\0';
}

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/// Bytes of the character that `text` begins with; 0 where that is no UTF-8 (RFC 3629, table 3-7 of Unicode).
std::size_t character_bytes(std::string_view text) {
  const unsigned char first = byte_at(text, 0), second = byte_at(text, 1);
  if (first < 0x80) return 1;
  const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (!is_continuation(byte_at(text, i))) return 0;
  }
  const bool is_overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool is_beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
  return is_overlong || is_beyond ? 0 : size;
}

std::string escape_of(unsigned char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (byte == '\n') return "\\n";
  if (byte == '\r') return "\\r";
  if (byte == '\t') return "\\t";
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

}  // namespace

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t size = character_bytes(text);
    const unsigned char first = byte_at(text, 0), second = byte_at(text, 1);
    if (size == 1 && first >= 0x20 && first != 0x7F) {
      line += text[0];
    } else if (size == 2 && first == 0xC2 && second < 0xA0) {
      line += escape_of(second);
    } else if (size > 1) {
      line += text.substr(0, size);
    } else {
      line += escape_of(first);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return line;
}

std::string shortened(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  std::size_t size = most_bytes;
  for (int i = 0; i < 3 && size > 0 && is_continuation(byte_at(text, size)); ++i) --size;
  return std::string(text.substr(0, size)) + "…";
}

}  // namespace pharos::base
