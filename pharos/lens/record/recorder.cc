#include "pharos/lens/record/recorder.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "pharos/base/clock.h"
#include "pharos/lens/record/names.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/ring_file.h"

namespace pharos::lens {

constinit std::atomic<std::uint64_t> enabled_groups{0};

namespace internal {

constinit std::atomic<std::uint32_t> current_epoch{0};
constinit OpenSlot dropped_slot{};
constinit thread_local ThreadCache thread_cache;

namespace {

/// A span must not push all others out of the ring.
constexpr std::size_t kMaxSpillBytes = std::size_t{64} * 1024;

constinit std::atomic<Session*> current_session{nullptr};

/// Hands the state of a thread that ends to the next one. Apart from ThreadCache, whose accesses it would slow down.
struct ThreadExit {
  ~ThreadExit() {
    ThreadState* state = thread_cache.state;
    thread_cache.state = nullptr;
    if (state == nullptr || state->epoch != current_epoch.load(std::memory_order_relaxed)) return;
    state->stack.clear();
    const std::lock_guard lock(state->session->mutex);
    state->session->idle_threads.push_back(state);
  }
};

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    seed = static_cast<std::uint64_t>(base::wall_ns()) ^ (static_cast<std::uint64_t>(getpid()) << 32);
  }
  return seed;
}

std::unique_ptr<ThreadState> make_thread_state(Session& session) {
  std::byte* region = map_region(session);
  if (region == nullptr) return nullptr;
  auto state = std::make_unique<ThreadState>();
  state->session = &session;
  state->epoch = session.epoch;
  state->thread_index = static_cast<std::uint32_t>(session.threads.size());
  state->header = reinterpret_cast<RegionHeader*>(region);
  state->header->thread_index = state->thread_index;
  state->slots = reinterpret_cast<OpenSlot*>(region + sizeof(RegionHeader));
  state->records = reinterpret_cast<RingRecord*>(state->slots + kNumOpenSlots);
  state->record_mask = session.options.ring_records - 1;
  state->random_state = random_seed();
  state->sampler = session.options.sampler.get();
  state->spill_capacity_bytes = std::min<std::size_t>(kMaxSpillBytes, session.options.ring_records / 4 * kPayloadBytes);
  return state;
}

}  // namespace

ThreadState* register_thread() {
  Session* session = current_session.load(std::memory_order_acquire);
  if (session == nullptr) return nullptr;
  if (thread_cache.refused_epoch == session->epoch) {
    session->refused.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  static thread_local ThreadExit thread_exit;
  static_cast<void>(thread_exit);
  const std::lock_guard lock(session->mutex);
  ThreadState* state = nullptr;
  if (!session->idle_threads.empty()) {
    state = session->idle_threads.back();
    session->idle_threads.pop_back();
  } else if (session->threads.size() < kMaxThreads) {
    if (auto made = make_thread_state(*session)) {
      state = made.get();
      session->threads.push_back(std::move(made));
    }
  }
  thread_cache.state = state;
  if (state == nullptr) {
    thread_cache.refused_epoch = session->epoch;
    session->refused.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  state->header->thread_id = static_cast<std::uint32_t>(syscall(SYS_gettid));
  return state;
}

namespace {

void forget_in_child() {
  unlock_names();
  enabled_groups.store(0, std::memory_order_relaxed);
  current_session.store(nullptr, std::memory_order_relaxed);
  current_epoch.fetch_add(1, std::memory_order_relaxed);
  thread_cache = {};
}

void install_fork_handlers() {
  static const int result = pthread_atfork(&lock_names, &unlock_names, &forget_in_child);
  static_cast<void>(result);
}

/// The span in a slot that is claimed; its end is `end_ns` unless it has one.
SpanData decode_slot(const ThreadState& state, OpenSlot& slot, std::int64_t end_ns) {
  slot.body.end_ns = std::max(end_ns, slot.body.start_ns);
  SpanData span = decode(slot.body, state.spills[static_cast<std::size_t>(&slot - state.slots)]);
  span.name = name_text(slot.body.name);
  span.thread_index = state.thread_index;
  mark_truncated(span, span.end_ns, "still open at telemetry shutdown");
  return span;
}

/// Takes a slot that is open from its owner; a busy one is about to be open or free.
bool claim_open_slot(OpenSlot& slot) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::uint64_t state = slot.state.load(std::memory_order_acquire);
    if ((state & 3) == kFree || (state & 3) == kTruncated) return false;
    if ((state & 3) == kOpen && slot.state.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) {
      return true;
    }
    sched_yield();
  }
  return false;
}

void drain_thread(Session& session, ThreadState& state, std::vector<SpanData>& spans) {
  const std::uint64_t head = state.header->num_records.load(std::memory_order_acquire);
  const std::uint64_t capacity = state.record_mask + 1;
  if (head - state.drained_records > capacity) state.drained_records = head - capacity;
  RecordBody body;
  for (; state.drained_records < head; ++state.drained_records) {
    if (!read_record(state.records[state.drained_records & state.record_mask], state.drained_records, body)) continue;
    std::optional<SpanData> span = state.joiner.add(body);
    if (!span || body.group == kCounterGroup) continue;
    // What was overwritten shows in the number of the next span that was not; the last one never is for long.
    session.overwritten += body.span_number - state.drained_spans;
    state.drained_spans = body.span_number + 1;
    span->name = name_text(body.name);
    span->thread_index = state.thread_index;
    spans.push_back(std::move(*span));
  }
}

/// Writes the body as the next record of the calling thread's ring.
void write_record(ThreadState& state, const RecordBody& body) {
  const std::uint64_t index = state.num_records++;
  RingRecord& record = state.records[index & state.record_mask];
  const std::byte* source = reinterpret_cast<const std::byte*>(&body);
  const std::size_t num_words = used_words(body.payload_bytes);
  record.sequence.store(2 * index + 1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < num_words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, source + 8 * i, sizeof word);
    // Release keeps these behind the odd sequence number, which a reader of any of them then sees. On x86 a plain
    // store.
    record.words[i].store(word, std::memory_order_release);
  }
  record.sequence.store(2 * index + 2, std::memory_order_release);
  state.header->num_records.store(index + 1, std::memory_order_release);
  if (body.num_dropped_attributes != 0) {
    state.session->dropped_attributes.fetch_add(body.num_dropped_attributes, std::memory_order_relaxed);
  }
}

/// Cold: the entries that had no room in the record.
void write_continuations(ThreadState& state, RecordBody& body, std::vector<std::byte>& spill) {
  RecordBody part{};
  part.span_id = body.span_id;
  part.flags = kContinuation;
  for (std::size_t offset = 0; offset < spill.size(); offset += kPayloadBytes) {
    part.num_continuations = body.num_continuations++;
    part.payload_bytes = static_cast<std::uint16_t>(std::min(spill.size() - offset, kPayloadBytes));
    std::memcpy(part.payload, spill.data() + offset, part.payload_bytes);
    write_record(state, part);
  }
  state.num_continuations += body.num_continuations;
  state.header->num_continuations.store(state.num_continuations, std::memory_order_relaxed);
  std::vector<std::byte>().swap(spill);
}

std::vector<ThreadState*> list_threads(Session& session) {
  const std::lock_guard lock(session.mutex);
  std::vector<ThreadState*> states;
  for (const auto& state : session.threads) states.push_back(state.get());
  return states;
}

}  // namespace

std::int32_t ContextStack::push(const SpanContext& context, CarriedPointer carried_state) {
  if (depth == kMaxDepth) return -1;
  Entry& entry = entries[static_cast<std::size_t>(depth)];
  entry.carried = std::move(carried_state);
  return fill(entry, context);
}

void ContextStack::clear() {
  for (Entry& entry : entries) {
    entry.span_id.store(0, std::memory_order_relaxed);
    entry.carried.reset();
  }
  depth = 0;
}

NameId ThreadState::find_name(std::string_view name) {
  CachedName& cached = name_cache[std::hash<std::string_view>{}(name) % name_cache.size()];
  if (cached.text != name || name.empty()) {
    cached.id = intern_name(name);
    cached.text = name;
  }
  return cached.id;
}

SpanPayload ThreadState::payload_of(RecordBody& body, std::vector<std::byte>& spill) {
  return {body, spill, spill_capacity_bytes, session->options.limits};
}

SpanPayload ThreadState::payload_of(OpenSlot& slot) {
  return payload_of(slot.body, spills[static_cast<std::size_t>(&slot - slots)]);
}

Session* open_session(const SessionOptions& options) {
  install_fork_handlers();
  auto session = std::make_unique<Session>();
  session->options = options;
  session->options.ring_records = std::max<std::uint32_t>(8, std::bit_ceil(options.ring_records));
  session->epoch = current_epoch.load() + 1;
  map_header(*session);
  // Sessions are kept to the end of the process; the list keeps them reachable.
  static auto* const sessions = new std::vector<std::unique_ptr<Session>>;
  sessions->push_back(std::move(session));
  Session* opened = sessions->back().get();
  mirror_names(reinterpret_cast<std::byte*>(opened->header) + kPageBytes, kNamesBytes, &opened->header->names_used);
  current_session.store(opened, std::memory_order_release);
  current_epoch.store(opened->epoch);
  return opened;
}

void deactivate_session(Session& session) {
  enabled_groups.store(0);
  Session* expected = &session;
  if (!current_session.compare_exchange_strong(expected, nullptr)) return;
  current_epoch.fetch_add(1);
  mirror_names(nullptr, 0, nullptr);
}

void write_span(ThreadState& state, RecordBody& body, std::vector<std::byte>& spill) {
  if (!spill.empty()) [[unlikely]] {
    write_continuations(state, body, spill);
  }
  // As one word, because write_record is about to load it as one: a load waits for several smaller stores.
  constexpr std::size_t kOffset = offsetof(RecordBody, span_number);
  static_assert(kOffset % 8 == 0 && offsetof(RecordBody, payload) == kOffset + 8);
  std::uint64_t word = 0;
  std::memcpy(&word, reinterpret_cast<const std::byte*>(&body) + kOffset, sizeof word);
  word = (word & ~std::uint64_t{0xffffffff}) | static_cast<std::uint32_t>(state.num_records - state.num_continuations);
  std::memcpy(reinterpret_cast<std::byte*>(&body) + kOffset, &word, sizeof word);
  write_record(state, body);
}

void write_counter_event(ThreadState& state, RecordBody& body, std::vector<std::byte>& spill) {
  if (!spill.empty()) write_continuations(state, body, spill);
  ++state.num_continuations;
  state.header->num_continuations.store(state.num_continuations, std::memory_order_relaxed);
  write_record(state, body);
}

bool read_record(const RingRecord& record, std::uint64_t index, RecordBody& body) {
  if (record.sequence.load(std::memory_order_acquire) != 2 * index + 2) return false;
  std::uint64_t words[kBodyWords] = {};
  const std::size_t num_fixed = used_words(0);
  for (std::size_t i = 0; i < num_fixed; ++i) words[i] = record.words[i].load(std::memory_order_acquire);
  std::memcpy(static_cast<void*>(&body), words, sizeof body);
  const std::size_t payload_bytes = std::min<std::size_t>(body.payload_bytes, kPayloadBytes);
  for (std::size_t i = num_fixed; i < used_words(payload_bytes); ++i) {
    words[i] = record.words[i].load(std::memory_order_acquire);
  }
  std::memcpy(static_cast<void*>(&body), words, sizeof body);
  return record.sequence.load(std::memory_order_relaxed) == 2 * index + 2;
}

void drain(Session& session, std::vector<SpanData>& spans) {
  for (ThreadState* state : list_threads(session)) drain_thread(session, *state, spans);
}

void close_open_spans(Session& session, std::vector<SpanData>& spans) {
  const std::int64_t now_ns = base::monotonic_ns();
  std::vector<SpanData> closed;
  for (ThreadState* state : list_threads(session)) {
    for (std::uint32_t i = 0; i < kNumOpenSlots; ++i) {
      OpenSlot& slot = state->slots[i];
      if (!claim_open_slot(slot)) continue;
      closed.push_back(decode_slot(*state, slot, now_ns));
      slot.state.store((slot.state.load(std::memory_order_relaxed) & ~std::uint64_t{3}) | kTruncated,
                       std::memory_order_release);
    }
  }
  std::stable_sort(closed.begin(), closed.end(),
                   [](const SpanData& left, const SpanData& right) { return left.start_ns < right.start_ns; });
  for (auto span = closed.rbegin(); span != closed.rend(); ++span) spans.push_back(std::move(*span));
}

std::uint64_t count_records(Session& session) {
  std::uint64_t count = 0;
  for (ThreadState* state : list_threads(session)) {
    const std::uint64_t continuations = state->header->num_continuations.load(std::memory_order_relaxed);
    count += std::max(state->header->num_records.load(std::memory_order_relaxed), continuations) - continuations;
  }
  return count;
}

}  // namespace internal
}  // namespace pharos::lens
