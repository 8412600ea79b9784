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

#include "pharos/lens/context/sampler.h"
#include "pharos/lens/data/span_data.h"
#include "pharos/lens/record/joiner.h"
#include "pharos/lens/record/limits.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/ring_format.h"
#include "pharos/lens/span.h"

namespace pharos::lens::internal {

struct Session;

/// What comes along with a context from another process and is handed on to the next.
struct CarriedState {
  std::string tracestate;
  std::vector<std::pair<std::string, std::string>> baggage;
};
using CarriedPointer = std::shared_ptr<const CarriedState>;

/// Spans that are current in a thread, innermost last. Only the owner changes the depth; a span that ends in another
/// thread, or not in order, leaves a zero that the owner skips.
struct ContextStack {
  static constexpr std::int32_t kMaxDepth = 128;
  struct Entry {
    std::atomic<std::uint64_t> span_id{0};
    std::uint64_t trace_id_high = 0;
    std::uint64_t trace_id_low = 0;
    std::uint8_t trace_flags = 0;
    bool is_remote = false;
    bool is_none = false;  ///< hides what is below: there is no current span; span_id only tells entries apart
    CarriedPointer carried;
  };

  SpanContext top();
  /// Of the context that top() has just returned; null: nothing.
  const CarriedPointer& carried() const {
    return depth > 0 ? entries[static_cast<std::size_t>(depth - 1)].carried : nothing;
  }
  /// Position of the new entry, or -1 when the stack is full: the span is then recorded but never current. What the
  /// entry below carries is carried on.
  std::int32_t push(const SpanContext& context) {
    if (depth == kMaxDepth) return -1;
    Entry& entry = entries[static_cast<std::size_t>(depth)];
    const CarriedPointer& below = carried();
    if (below != nullptr || entry.carried != nullptr) [[unlikely]] {
      entry.carried = below;
    }
    return fill(entry, context);
  }
  std::int32_t push(const SpanContext& context, CarriedPointer carried_state);
  /// From any thread: the entry at `index`, if it still is that of `span_id`, is no longer current.
  void remove(std::int32_t index, std::uint64_t span_id, bool is_owner);
  void clear();

  std::int32_t depth = 0;
  std::array<Entry, kMaxDepth> entries;
  CarriedPointer nothing;

 private:
  std::int32_t fill(Entry& entry, const SpanContext& context) {
    entry.trace_id_high = context.trace_id_high;
    entry.trace_id_low = context.trace_id_low;
    entry.trace_flags = context.trace_flags;
    entry.is_remote = context.is_remote;
    entry.is_none = false;
    entry.span_id.store(context.span_id, std::memory_order_relaxed);
    return depth++;
  }
};

inline SpanContext ContextStack::top() {
  while (depth > 0) {
    const Entry& entry = entries[static_cast<std::size_t>(depth - 1)];
    const std::uint64_t span_id = entry.span_id.load(std::memory_order_relaxed);
    if (span_id != 0) {
      if (entry.is_none) return {};
      return {entry.trace_id_high, entry.trace_id_low, span_id, entry.trace_flags, entry.is_remote};
    }
    --depth;
  }
  return {};
}

inline void ContextStack::remove(std::int32_t index, std::uint64_t span_id, bool is_owner) {
  if (index < 0) return;
  Entry& entry = entries[static_cast<std::size_t>(index)];
  if (!is_owner) {
    entry.span_id.compare_exchange_strong(span_id, 0, std::memory_order_relaxed);
    return;
  }
  if (entry.span_id.load(std::memory_order_relaxed) != span_id) return;
  entry.span_id.store(0, std::memory_order_relaxed);
  if (index == depth - 1) --depth;
}

/// What a recording thread needs. Belongs to a session, outlives the thread and is handed to a later one.
struct ThreadState {
  Session* session = nullptr;
  std::uint32_t epoch = 0;
  std::uint32_t thread_index = 0;
  RegionHeader* header = nullptr;
  OpenSlot* slots = nullptr;
  RingRecord* records = nullptr;
  std::uint64_t record_mask = 0;
  std::uint64_t num_records = 0;        ///< the owner's copy of header->num_records
  std::uint64_t num_continuations = 0;  ///< … and of header->num_continuations
  const Sampler* sampler = nullptr;     ///< null: a span is sampled unless its parent is not
  std::uint64_t free_slots = ~std::uint64_t{0};
  std::atomic<std::uint64_t> remotely_freed_slots{0};
  std::uint64_t random_state = 0;
  std::uint64_t drained_records = 0;                         ///< the exporter thread's
  std::uint32_t drained_spans = 0;                           ///< the exporter thread's, modulo 2^32
  RecordJoiner joiner;                                       ///< the exporter thread's
  std::array<std::vector<std::byte>, kNumOpenSlots> spills;  ///< what did not fit into a slot; under the slot's claim
  std::size_t spill_capacity_bytes = 0;
  ContextStack stack;
  struct CachedName {
    std::string text;
    NameId id = 0;
  };
  std::array<CachedName, 64> name_cache;

  /// 64 bits that are never zero (splitmix64 seeded by the operating system: unlike ids of equally seeded ranks).
  std::uint64_t next_id() {
    std::uint64_t value = (random_state += 0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    value ^= value >> 31;
    return value != 0 ? value : 1;
  }
  NameId find_name(std::string_view name);
  SpanPayload payload_of(OpenSlot& slot);
  SpanPayload payload_of(RecordBody& body, std::vector<std::byte>& spill);
};

struct SessionOptions {
  std::filesystem::path ring_path;  ///< empty: memory only
  std::uint32_t ring_records = 8192;
  int rank = 0;
  int world_size = 1;
  std::string service_name;
  RecordLimits limits = {};
  SamplerPointer sampler = {};  ///< null: parent-based, on at the root, at no cost
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

struct ThreadCache {
  ThreadState* state = nullptr;
  std::uint32_t refused_epoch = 0;
};
extern constinit thread_local ThreadCache thread_cache;

/// Cold: the first span of a thread in a session.
ThreadState* register_thread();

/// State of the calling thread in the running session; null if there is none or all places are taken.
inline ThreadState* thread_state() {
  ThreadState* state = thread_cache.state;
  if (state != nullptr && state->epoch == current_epoch.load(std::memory_order_relaxed)) return state;
  return register_thread();
}

/// Makes and installs the session. UserError when the ring file cannot be made.
Session* open_session(const SessionOptions& options);

/// No span starts or ends in `session` from here on.
void deactivate_session(Session& session);

/// The slot of spans that are not sampled: never open, so nothing is ever written to it.
extern constinit OpenSlot dropped_slot;

/// Writes an ended span into the calling thread's ring: what was spilled, then the body. Empties `spill`.
void write_span(ThreadState& state, RecordBody& body, std::vector<std::byte>& spill);

/// The same of a counter event.
void write_counter_event(ThreadState& state, RecordBody& body, std::vector<std::byte>& spill);

/// Takes the ended spans since the last call out of all rings. Exporter thread, or anyone after it has ended.
void drain(Session& session, std::vector<SpanData>& spans);

/// Marks all spans of a deactivated session that are still open as ended now, and appends them, children first.
void close_open_spans(Session& session, std::vector<SpanData>& spans);

/// Ended spans ever written.
std::uint64_t count_records(Session& session);

/// Copies record number `index`; false if it was overwritten or is not whole.
bool read_record(const RingRecord& record, std::uint64_t index, RecordBody& body);

}  // namespace pharos::lens::internal
