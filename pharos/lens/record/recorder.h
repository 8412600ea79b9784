// The recording side: sessions, the state of each recording thread, and the ring writes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/lens/exporter.h"
#include "pharos/lens/record/ring_format.h"
#include "pharos/lens/span.h"

namespace pharos::lens::internal {

struct Session;

/// Spans that are current in a thread, innermost last. Only the owner changes the depth; a span that ends in another
/// thread, or not in order, leaves a zero that the owner skips.
struct ContextStack {
  static constexpr std::int32_t kMaxDepth = 128;
  struct Entry {
    std::atomic<std::uint64_t> span_id{0};
    std::uint64_t trace_id_high = 0;
    std::uint64_t trace_id_low = 0;
  };

  SpanContext top();
  /// Position of the new entry, or -1 when the stack is full: the span is then recorded but never current.
  std::int32_t push(const SpanContext& context);
  /// From any thread: the entry at `index`, if it still is that of `span_id`, is no longer current.
  void remove(std::int32_t index, std::uint64_t span_id, bool is_owner);
  void clear();

  std::int32_t depth = 0;
  std::array<Entry, kMaxDepth> entries;
};

/// What a recording thread needs. Belongs to a session, outlives the thread and is handed to a later one.
struct ThreadState {
  Session* session = nullptr;
  std::uint32_t epoch = 0;
  std::uint32_t thread_index = 0;
  RegionHeader* header = nullptr;
  OpenSlot* slots = nullptr;
  RingRecord* records = nullptr;
  std::uint64_t record_mask = 0;
  std::uint64_t num_records = 0;  ///< the owner's copy of header->num_records
  std::uint64_t free_slots = ~std::uint64_t{0};
  std::atomic<std::uint64_t> remotely_freed_slots{0};
  std::uint64_t random_state = 0;
  std::uint64_t drained_records = 0;  ///< the exporter thread's
  ContextStack stack;
  struct CachedName {
    std::string text;
    NameId id = 0;
  };
  std::array<CachedName, 64> name_cache;

  /// 64 bits that are never zero (splitmix64 seeded by the operating system: unlike ids of equally seeded ranks).
  std::uint64_t next_id();
  NameId find_name(std::string_view name);
};

struct SessionOptions {
  std::filesystem::path ring_path;  ///< empty: memory only
  std::uint32_t ring_records = 8192;
  int rank = 0;
  int world_size = 1;
  std::string service_name;
};

/// Rings and counts between one init and its shutdown. Never freed: spans that are still alive refer to it.
struct Session {
  SessionOptions options;
  std::uint32_t epoch = 0;
  int descriptor = -1;
  FileHeader* header = nullptr;
  std::mutex mutex;  ///< threads and idle_threads
  std::vector<std::unique_ptr<ThreadState>> threads;
  std::vector<ThreadState*> idle_threads;
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::uint64_t> dropped_attributes{0};
  std::uint64_t overwritten = 0;  ///< the exporter thread's
};

/// Changes at every init, shutdown and fork; spans of another epoch do nothing.
extern constinit std::atomic<std::uint32_t> current_epoch;

/// State of the calling thread in the running session; null if there is none or all places are taken.
ThreadState* thread_state();

/// Makes and installs the session. UserError when the ring file cannot be made.
Session* open_session(const SessionOptions& options);

/// No span starts or ends in `session` from here on.
void deactivate_session(Session& session);

/// Writes the body as the next record of the calling thread's ring.
void write_record(ThreadState& state, const RecordBody& body);

/// Takes the ended spans since the last call out of all rings. Exporter thread, or anyone after it has ended.
void drain(Session& session, std::vector<SpanData>& spans);

/// Marks all spans of a deactivated session that are still open as ended now, and appends them, children first.
void close_open_spans(Session& session, std::vector<SpanData>& spans);

/// Ended spans ever written.
std::uint64_t count_records(Session& session);

/// Copies record number `index`; false if it was overwritten or is not whole.
bool read_record(const RingRecord& record, std::uint64_t index, RecordBody& body);

}  // namespace pharos::lens::internal
