// Layout of a flight record: header, a table of groups that only grows, entries of a fixed size. Host byte order: a
// record is read on the machine that wrote it or on one like it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pharos::comm::flight_format {

inline constexpr auto kMagic = std::bit_cast<std::uint64_t>(std::array{'P', 'H', 'F', 'L', 'I', 'G', 'H', 'T'});
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint32_t kNumEntries = 1024;
inline constexpr std::uint32_t kGroupAreaBytes = 256 * 1024;
inline constexpr std::uint32_t kNoGroup = 0xffffffff;

/// A record that a reader must not see half: `sequence` is odd while it is written. All words are accessed atomically,
/// since the reader may be a thread of the writer's process.
template <typename Data>
struct Guarded {
  static constexpr std::size_t kWords = sizeof(Data) / 8;
  static_assert(sizeof(Data) % 8 == 0 && std::is_trivially_copyable_v<Data>);

  std::uint64_t sequence;
  std::uint64_t words[kWords];

  void write(const Data& data) {
    std::array<std::uint64_t, kWords> copy;
    std::memcpy(copy.data(), &data, sizeof data);
    std::atomic_ref guard(sequence);
    const auto before = guard.load(std::memory_order_relaxed);
    guard.store(before | 1, std::memory_order_relaxed);
    // Who reads a new word sees the odd sequence, too.
    for (std::size_t i = 0; i < kWords; ++i) std::atomic_ref(words[i]).store(copy[i], std::memory_order_release);
    guard.store((before | 1) + 1, std::memory_order_release);
  }

  /// False when it was being written at each of a few tries: by a living writer for an instant, by a dead one for ever.
  bool read(Data& data) const {
    auto& self = const_cast<Guarded&>(*this);  // atomic_ref takes no const before C++26; nothing is written
    for (int attempt = 0; attempt < 100; ++attempt) {
      const auto before = std::atomic_ref(self.sequence).load(std::memory_order_acquire);
      std::array<std::uint64_t, kWords> copy;
      for (std::size_t i = 0; i < kWords; ++i) copy[i] = std::atomic_ref(self.words[i]).load(std::memory_order_acquire);
      if (before % 2 == 0 && std::atomic_ref(self.sequence).load(std::memory_order_relaxed) == before) {
        std::memcpy(&data, copy.data(), sizeof data);
        return true;
      }
    }
    return false;
  }
};

struct Progress {
  char phase[32];
  std::int64_t step;
  std::int64_t progress_ns;
};

/// What the rank is at within a step; nothing when `what` is empty.
struct Activity {
  char what[32];
  std::int64_t microbatch;
  std::int64_t stage;
};

struct Header {
  std::uint64_t magic;  ///< written last, atomically
  std::uint32_t version;
  std::uint32_t num_entries;
  std::uint32_t entry_bytes;
  std::uint32_t group_area_bytes;
  std::int64_t rank;
  std::int64_t world_size;
  std::int64_t pid;
  char host[64];
  std::int64_t alive_ns;      ///< atomically
  std::uint64_t group_bytes;  ///< used bytes of the group area, atomically
  Guarded<Progress> progress;
  Guarded<Activity> activity;  ///< written by the training thread alone
};

/// In the group area, followed by name_bytes and padding to 4, then num_ranks × u32.
struct GroupHead {
  std::uint32_t name_bytes;
  std::uint32_t num_ranks;
};

struct EntryData {
  std::uint64_t order;  ///< from 1, in order of arrival; 0: never used
  std::uint64_t number;
  std::int64_t bytes;
  std::int64_t peer;
  std::int64_t purpose_index;
  std::int64_t arrival_ns;
  std::int64_t start_ns;
  std::int64_t end_ns;
  std::int64_t wait_ns;
  std::uint32_t group;  ///< offset in the group area, or kNoGroup
  std::uint32_t operation;
  char purpose[48];
};
using Entry = Guarded<EntryData>;

inline constexpr std::size_t kGroupAreaOffset = (sizeof(Header) + 63) / 64 * 64;
inline constexpr std::size_t kEntriesOffset = kGroupAreaOffset + kGroupAreaBytes;
inline constexpr std::size_t kFileBytes = kEntriesOffset + kNumEntries * sizeof(Entry);

}  // namespace pharos::comm::flight_format
