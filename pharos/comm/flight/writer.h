// The writing side of the flight record. Knows no torch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/comm/flight.h"
#include "pharos/comm/flight/format.h"

namespace pharos::comm {

class FlightWriter;

/// A group as the record sees it. Calls are numbered per channel: all collectives of the group are one, and so is each
/// direction of transfers with each peer, because there only those two make the calls.
class FlightGroup {
 public:
  FlightGroup(std::string name, std::vector<std::int64_t> ranks);
  const std::string& name() const { return name_; }
  const std::vector<std::int64_t>& ranks() const { return ranks_; }

  static constexpr std::size_t kCollectives = 0;
  static std::size_t send_channel(std::int64_t peer) { return 1 + 2 * static_cast<std::size_t>(peer); }
  static std::size_t receive_channel(std::int64_t peer) { return 2 + 2 * static_cast<std::size_t>(peer); }

  /// Number of the next call of a channel, from 1.
  std::uint64_t next_number(std::size_t channel) { return ++channels_[channel].number; }

 private:
  friend class FlightWriter;
  struct Channel {
    std::uint64_t number = 0;
    std::atomic<std::uint32_t> newest_slot = 0xffffffff;
  };

  std::string name_;
  std::vector<std::int64_t> ranks_;
  std::unique_ptr<Channel[]> channels_;
  std::atomic<const FlightWriter*> registered_in_ = nullptr;
  std::uint32_t offset_ = flight_format::kNoGroup;
};

struct FlightCall {
  Operation operation;
  std::size_t channel = FlightGroup::kCollectives;
  std::uint64_t number = 0;
  const char* purpose = "";
  std::int64_t purpose_index = -1;
  std::int64_t bytes = 0;
  std::int64_t peer = -1;  ///< global rank
};

/// One call on its way through the record. Without a record it does nothing. Moved, not copied.
class FlightTicket {
 public:
  FlightTicket() = default;
  FlightTicket(FlightTicket&& other) noexcept { *this = std::move(other); }
  FlightTicket& operator=(FlightTicket&& other) noexcept;
  void mark_start();
  void mark_wait();
  void mark_end();

 private:
  friend class FlightWriter;
  FlightWriter* writer_ = nullptr;
  FlightGroup* group_ = nullptr;
  std::uint32_t slot_ = 0;
  std::size_t channel_ = 0;
  flight_format::EntryData data_{};
};

/// A record under way. Calls of different threads do not wait for each other. A slot is used again once its call has
/// ended and is not the newest of its channel: readers always find what a rank did last with each peer and each group.
class FlightWriter {
 public:
  /// Makes the file, which may be there already. UserError.
  FlightWriter(const std::filesystem::path& path, std::int64_t rank, std::int64_t world_size);
  ~FlightWriter();
  FlightWriter(const FlightWriter&) = delete;
  FlightWriter& operator=(const FlightWriter&) = delete;

  FlightTicket begin(FlightGroup& group, const FlightCall& call);
  void report(std::string_view phase, std::int64_t step, std::int64_t now_ns);
  void report_activity(std::string_view what, std::int64_t microbatch, std::int64_t stage);
  /// The process lives, says its watchdog.
  void show_life(std::int64_t now_ns);
  const std::filesystem::path& path() const { return path_; }
  /// What a reader would see.
  RankState read() const;

  /// The record of this process, once start_flight_record() has been called.
  static FlightWriter* current();

 private:
  friend class FlightTicket;
  enum class Slot : std::uint8_t { kFree, kPending, kNewest };

  std::optional<std::uint32_t> claim_slot();
  std::uint32_t register_group(FlightGroup& group);
  void release(FlightTicket& ticket);
  flight_format::Header& header() { return *reinterpret_cast<flight_format::Header*>(data_); }
  flight_format::Entry& entry(std::uint32_t slot) {
    return reinterpret_cast<flight_format::Entry*>(data_ + flight_format::kEntriesOffset)[slot];
  }

  std::filesystem::path path_;
  std::byte* data_ = nullptr;
  std::mutex group_mutex_;
  std::mutex progress_mutex_;
  std::atomic<std::uint64_t> order_ = 0;
  std::atomic<std::uint32_t> cursor_ = 0;
  std::array<std::atomic<Slot>, flight_format::kNumEntries> slots_{};
};

/// What this process last said with report_progress().
struct Progress {
  std::string phase = "set-up";
  std::int64_t step = 0;
  std::int64_t progress_ns = 0;
};
Progress last_progress();

/// "gradient bucket 2", or `what` alone with a negative index.
std::string purpose_text(std::string what, std::int64_t index);

/// Reads a record out of memory; `where` is named in the UserError.
RankState parse_flight_record(const std::byte* data, std::size_t size_bytes, const std::string& where);

}  // namespace pharos::comm
