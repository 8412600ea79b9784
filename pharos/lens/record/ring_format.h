// The ring file `trace/rank_N.ring`, version 2. Written through memory maps by the process that is looked at, read by
// anyone at any time, also after that process was killed. Little endian, all offsets in bytes.
//
//     0                   FileHeader (4096 bytes)
//     names_offset        span names in the order of their numbers: u16 length, text; names_used bytes are valid
//     regions_offset      num_regions regions of region_bytes, one per recording thread (reused by later threads):
//                           RegionHeader, num_open_slots records (spans still open), ring_records records (ended spans)
//
// Record = 80 bytes of fixed fields and up to 304 bytes of payload. Its first word orders readers against the writer:
//   in the ring   2·index + 1 while record number `index` is being written, 2·index + 2 when it is whole; it lies at
//                 position index mod ring_records, so the oldest is overwritten;
//   in a slot     generation · 4 + SlotState.
// Payload = entries of {u8 kind, u8 key length, u16 value length, key, value}:
//   kBool 1 byte · kInteger i64 · kDouble f64 · kText bytes · kIntegers i64 each · kDoubles f64 each ·
//   kTexts {u16 length, text} each · kBools 1 byte each · kStatusDescription text · kTraceState text ·
//   kLink trace id high, low, span id, u8 trace flags, u8 is remote ·
//   kException i64 time, u16 length of type, type, u16 length of message, message, stack trace ·
//   kEvent i64 time, u16 dropped attributes, u16 length of name, name, entries of its attributes.
//
// Entries that do not fit stay in memory while the span is open. When it ends they become continuation records (flag
// kContinuation, same span_id, num_continuations counts from 0) directly before the record of the span, whose
// num_continuations says how many there are. A reader that misses one has lost num_spilled entries.
//
// A record of group kCounterGroup is no span but a counter event: what its attributes count happened between start and
// end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pharos::lens::internal {

inline constexpr char kRingMagic[8] = {'P', 'H', 'A', 'R', 'O', 'S', 'R', '1'};
inline constexpr std::uint32_t kRingVersion = 2;
inline constexpr std::size_t kPageBytes = 4096;
inline constexpr std::size_t kNamesBytes = 64 * kPageBytes;
inline constexpr std::uint32_t kMaxThreads = 64;
inline constexpr std::uint32_t kNumOpenSlots = 64;
inline constexpr std::size_t kPayloadBytes = 304;

struct FileHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t record_bytes;
  std::uint32_t ring_records;
  std::uint32_t num_open_slots;
  std::uint64_t names_offset;
  std::uint64_t regions_offset;
  std::uint64_t region_bytes;
  std::int64_t wall_anchor_ns;       ///< Unix time at …
  std::int64_t monotonic_anchor_ns;  ///< … this CLOCK_MONOTONIC
  std::int32_t pid;
  std::int32_t rank;
  std::int32_t world_size;
  std::atomic<std::uint32_t> num_regions;
  std::atomic<std::uint64_t> names_used;
  std::atomic<std::uint32_t> is_shut_down;  ///< 1: the process left in order
  std::uint32_t reserved;
  char service_name[128];
  char host_name[64];
};
static_assert(sizeof(FileHeader) <= kPageBytes);

struct RegionHeader {
  std::atomic<std::uint64_t> num_records;  ///< records ever written: ended spans, continuations, counter events
  std::uint32_t thread_id;                 ///< of the kernel, the last thread that used the region
  std::uint32_t thread_index;
  std::atomic<std::uint64_t> num_continuations;  ///< of num_records, those that are no spans
  std::uint64_t reserved[5];
};
static_assert(sizeof(RegionHeader) == 64);

enum SlotState : std::uint64_t { kFree = 0, kOpen = 1, kBusy = 2, kTruncated = 3 };

enum RecordFlag : std::uint8_t {
  kScopeLens = 1,
  kUngated = 2,
  kIsError = 4,
  kTextCut = 8,
  kParentRemote = 16,
  kContinuation = 32,
  kIsOk = 64,
  kTypedErrors = 128,  ///< errors are described as "Type: message"
};

/// RecordBody::group of a span without a group.
inline constexpr std::uint8_t kNoGroup = 0xff;
/// RecordBody::group of a counter event.
inline constexpr std::uint8_t kCounterGroup = 0xfe;

enum class EntryKind : std::uint8_t {
  kBool = 1,
  kInteger = 2,
  kDouble = 3,
  kText = 4,
  kIntegers = 5,
  kDoubles = 6,
  kTexts = 7,
  kBools = 8,
  kStatusDescription = 16,
  kLink = 17,
  kException = 18,
  kEvent = 19,
  kTraceState = 20,
};

/// A record as its owner writes it. In the ring its words are stored one by one (RingRecord).
struct RecordBody {
  std::int64_t start_ns;
  std::int64_t end_ns;
  std::uint64_t span_id;
  std::uint64_t parent_span_id;
  std::uint64_t trace_id_high;
  std::uint64_t trace_id_low;
  std::uint32_t name;
  std::uint8_t group;
  std::uint8_t flags;
  std::uint16_t payload_bytes;
  std::uint16_t num_dropped_attributes;
  std::uint16_t num_continuations;  ///< records before this one; in a continuation its own number
  std::uint16_t num_spilled;        ///< entries that are not in `payload`
  std::uint8_t trace_flags;
  std::uint8_t num_dropped_events;
  std::uint32_t span_number;  ///< spans that were written to this ring before, modulo 2^32
  std::uint16_t num_attributes;
  std::uint8_t num_dropped_links;
  std::uint8_t reserved;
  std::byte payload[kPayloadBytes];
};

inline constexpr std::size_t kBodyWords = sizeof(RecordBody) / 8;

struct OpenSlot {
  std::atomic<std::uint64_t> state;
  RecordBody body;
};

struct RingRecord {
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint64_t> words[kBodyWords];
};
static_assert(sizeof(OpenSlot) == 384 && sizeof(RingRecord) == 384);

inline std::size_t region_bytes(std::uint32_t ring_records) {
  const std::size_t bytes = sizeof(RegionHeader) + (std::size_t{kNumOpenSlots} + ring_records) * sizeof(RingRecord);
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// Words of a body that carry something.
inline std::size_t used_words(std::size_t payload_bytes) {
  return (offsetof(RecordBody, payload) + payload_bytes + 7) / 8;
}

}  // namespace pharos::lens::internal
