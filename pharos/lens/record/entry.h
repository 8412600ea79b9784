// One entry of a payload, and walking over them. Format: ring_format.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "pharos/lens/record/ring_format.h"

namespace pharos::lens::internal {

struct EntryHeader {
  EntryKind kind;
  std::uint8_t key_bytes;
  std::uint16_t value_bytes;
};
static_assert(sizeof(EntryHeader) == 4);

constexpr bool is_attribute(EntryKind kind) { return kind >= EntryKind::kBool && kind <= EntryKind::kBools; }

struct Entry {
  EntryHeader header;
  std::string_view key;
  std::string_view value;
  std::size_t offset;
  std::size_t size_bytes;
};

/// Calls `visit` for each whole entry until it returns false.
template <typename Visit>
void for_each_entry(std::span<const std::byte> bytes, Visit&& visit) {
  std::size_t offset = 0;
  while (offset + sizeof(EntryHeader) <= bytes.size()) {
    Entry entry{};
    std::memcpy(&entry.header, bytes.data() + offset, sizeof entry.header);
    entry.offset = offset;
    entry.size_bytes = sizeof entry.header + entry.header.key_bytes + entry.header.value_bytes;
    if (offset + entry.size_bytes > bytes.size()) return;
    const char* text = reinterpret_cast<const char*>(bytes.data() + offset + sizeof entry.header);
    entry.key = {text, entry.header.key_bytes};
    entry.value = {text + entry.header.key_bytes, entry.header.value_bytes};
    if (!visit(entry)) return;
    offset += entry.size_bytes;
  }
}

inline std::span<const std::byte> used_payload(const RecordBody& body) {
  return {body.payload, body.payload_bytes < kPayloadBytes ? body.payload_bytes : kPayloadBytes};
}

}  // namespace pharos::lens::internal
