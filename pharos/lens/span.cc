#include "pharos/lens/span.h"

#include <algorithm>
#include <bit>

#include "pharos/base/clock.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens {

using internal::ThreadState;

namespace {

constexpr std::uint8_t kNoGroup = 0xff;

/// A free slot of the calling thread's, or -1 when 64 spans are open.
int take_slot(ThreadState& state) {
  if (state.free_slots == 0) state.free_slots = state.remotely_freed_slots.exchange(0, std::memory_order_acquire);
  if (state.free_slots == 0) {
    state.session->refused.fetch_add(1, std::memory_order_relaxed);
    return -1;
  }
  const int index = std::countr_zero(state.free_slots);
  state.free_slots &= state.free_slots - 1;
  return index;
}

void give_slot(ThreadState& owner, const internal::OpenSlot* slot, bool is_owner) {
  const std::uint64_t bit = std::uint64_t{1} << (slot - owner.slots);
  if (is_owner) {
    owner.free_slots |= bit;
  } else {
    owner.remotely_freed_slots.fetch_or(bit, std::memory_order_release);
  }
}

/// Trace of `parent`, or a new one.
void begin_body(ThreadState& state, internal::RecordBody& body, const SpanContext& parent) {
  body.span_id = state.next_id();
  body.parent_span_id = parent.span_id;
  if (parent) {
    body.trace_id_high = parent.trace_id_high;
    body.trace_id_low = parent.trace_id_low;
  } else {
    body.trace_id_high = state.next_id();
    body.trace_id_low = state.next_id();
  }
  body.end_ns = 0;
  body.payload_bytes = 0;
  body.num_dropped_attributes = 0;
}

SpanContext context_of(const internal::RecordBody& body) {
  return {body.trace_id_high, body.trace_id_low, body.span_id};
}

std::uint8_t scope_flag(Scope scope) { return scope == Scope::kLens ? internal::kScopeLens : 0; }

/// Exclusive use of an open slot, against the closing of open spans at shutdown.
class SlotClaim {
 public:
  SlotClaim(internal::OpenSlot* slot, std::uint32_t generation)
      : slot_(slot), open_state_((std::uint64_t{generation} << 2) | internal::kOpen) {
    std::uint64_t expected = open_state_;
    is_held_ = slot->state.compare_exchange_strong(expected, open_state_ - internal::kOpen + internal::kBusy,
                                                   std::memory_order_acquire, std::memory_order_relaxed);
  }
  SlotClaim(const SlotClaim&) = delete;
  ~SlotClaim() {
    if (is_held_) slot_->state.store(open_state_, std::memory_order_release);
  }
  bool is_held() const { return is_held_; }
  /// The slot becomes free instead of open again.
  void free() {
    slot_->state.store((open_state_ & ~std::uint64_t{3}) | internal::kFree, std::memory_order_release);
    is_held_ = false;
  }

 private:
  internal::OpenSlot* slot_;
  std::uint64_t open_state_;
  bool is_held_;
};

bool is_of_running_session(std::uint32_t epoch) {
  return epoch == internal::current_epoch.load(std::memory_order_relaxed);
}

}  // namespace

SpanContext current_context() {
  if (!is_telemetry_active()) return {};
  ThreadState* state = internal::thread_state();
  return state != nullptr ? state->stack.top() : SpanContext{};
}

ManagedSpan& ManagedSpan::operator=(ManagedSpan&& other) noexcept {
  if (this == &other) return *this;
  if (slot_ != nullptr) finish(0);
  slot_ = std::exchange(other.slot_, nullptr);
  owner_ = other.owner_;
  generation_ = other.generation_;
  epoch_ = other.epoch_;
  stack_index_ = other.stack_index_;
  num_exceptions_ = other.num_exceptions_;
  context_ = other.context_;
  return *this;
}

namespace {

struct SlotPlan {
  std::uint8_t group;
  std::uint8_t flags;
  NameId name;
  std::int64_t start_ns;
};

/// Fills a slot and opens it; returns its generation.
std::uint32_t open_slot(ThreadState& state, internal::OpenSlot& slot, const SlotPlan& plan, const SpanContext& parent,
                        std::initializer_list<Attribute> attributes) {
  internal::RecordBody& body = slot.body;
  begin_body(state, body, parent);
  body.name = plan.name;
  body.group = plan.group;
  body.flags = plan.flags;
  for (const Attribute& attribute : attributes) internal::append_attribute(body, attribute.key, attribute.value);
  body.start_ns = plan.start_ns != 0 ? plan.start_ns : base::monotonic_ns();
  const auto generation = static_cast<std::uint32_t>(slot.state.load(std::memory_order_relaxed) >> 2) + 1;
  slot.state.store((std::uint64_t{generation} << 2) | internal::kOpen, std::memory_order_release);
  return generation;
}

}  // namespace

ManagedSpan ManagedSpan::start(Group group, NameId name, std::initializer_list<Attribute> attributes, Scope scope) {
  ManagedSpan span;
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return span;
  const int index = take_slot(*state);
  if (index < 0) return span;
  const SlotPlan plan{static_cast<std::uint8_t>(group), scope_flag(scope), name, 0};
  span.slot_ = state->slots + index;
  span.owner_ = state;
  span.epoch_ = state->epoch;
  span.num_exceptions_ = std::uncaught_exceptions();
  span.generation_ = open_slot(*state, *span.slot_, plan, state->stack.top(), attributes);
  span.context_ = context_of(span.slot_->body);
  span.stack_index_ = state->stack.push(span.context_);
  return span;
}

ManagedSpan ManagedSpan::start_with(Group group, NameId name, const StartOptions& options,
                                    std::initializer_list<Attribute> attributes) {
  ManagedSpan span;
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return span;
  const int index = take_slot(*state);
  if (index < 0) return span;
  SpanContext parent = options.parent ? options.parent : state->stack.top();
  if (options.is_root) parent = {};
  const SlotPlan plan{static_cast<std::uint8_t>(group), scope_flag(options.scope), name, options.start_ns};
  span.slot_ = state->slots + index;
  span.owner_ = state;
  span.epoch_ = state->epoch;
  span.num_exceptions_ = std::uncaught_exceptions();
  span.generation_ = open_slot(*state, *span.slot_, plan, parent, attributes);
  span.context_ = context_of(span.slot_->body);
  if (options.make_current) span.stack_index_ = state->stack.push(span.context_);
  span.add_link(options.link);
  return span;
}

ManagedSpan ManagedSpan::start_ungated(NameId name, std::initializer_list<Attribute> attributes) {
  ManagedSpan span = start(Group::kJob, name, attributes);
  if (!span) return span;
  const SlotClaim claim(span.slot_, span.generation_);
  if (!claim.is_held()) return span;
  span.slot_->body.group = kNoGroup;
  span.slot_->body.flags |= internal::kUngated;
  return span;
}

void ManagedSpan::set_attribute(std::string_view key, const AttributeValue& value) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (!claim.is_held()) return;
  if (value.type() != AttributeValue::Type::kNone) internal::erase_attribute(slot_->body, key);
  internal::append_attribute(slot_->body, key, value);
}

void ManagedSpan::set_error(std::string_view description) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (claim.is_held()) internal::put_error(slot_->body, description);
}

void ManagedSpan::set_exception(const std::exception& exception) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const std::string type = internal::type_name(exception);
  const SlotClaim claim(slot_, generation_);
  if (!claim.is_held()) return;
  const bool is_managed = (slot_->body.flags & (internal::kScopeLens | internal::kUngated)) == 0;
  const std::string description = is_managed ? exception.what() : type + ": " + exception.what();
  internal::append_exception(slot_->body, base::monotonic_ns(), type, exception.what());
  internal::put_error(slot_->body, description);
}

void ManagedSpan::set_link(SpanContext context) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (claim.is_held()) internal::append_link(slot_->body, context);
}

void ManagedSpan::finish_scope() noexcept {
  const bool is_failing = std::uncaught_exceptions() > num_exceptions_;
  if (is_failing && is_of_running_session(epoch_)) {
    const SlotClaim claim(slot_, generation_);
    if (claim.is_held() && (slot_->body.flags & internal::kIsError) == 0) {
      internal::put_error(slot_->body, "exception in flight");
    }
  }
  finish(0);
}

void ManagedSpan::finish(std::int64_t end_ns) noexcept {
  internal::OpenSlot* slot = std::exchange(slot_, nullptr);
  if (!is_of_running_session(epoch_)) return;
  ThreadState* state = internal::thread_state();
  const bool is_owner = state == owner_;
  owner_->stack.remove(stack_index_, context_.span_id, is_owner);
  SlotClaim claim(slot, generation_);
  if (!claim.is_held()) return;
  slot->body.end_ns = std::max(end_ns != 0 ? end_ns : base::monotonic_ns(), slot->body.start_ns);
  if (state != nullptr) internal::write_record(*state, slot->body);
  claim.free();
  give_slot(*owner_, slot, is_owner);
}

ManagedSpan managed_span(Group group, std::string_view name, const Attribute& first, const Attribute& second,
                         const Attribute& third, const Attribute& fourth) {
  if (!is_span_group_enabled(group)) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  return ManagedSpan::start(group, state->find_name(name), {first, second, third, fourth});
}

SpanScope span_cm(std::string_view name, const Attribute& first, const Attribute& second, const Attribute& third,
                  const Attribute& fourth) {
  if (!is_telemetry_active()) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  return ManagedSpan::start_ungated(state->find_name(name), {first, second, third, fourth});
}

ManagedSpan start_span(Group group, std::string_view name, const StartOptions& options,
                       std::initializer_list<Attribute> attributes) {
  if (!is_span_group_enabled(group)) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  return ManagedSpan::start_with(group, state->find_name(name), options, attributes);
}

SpanContext record_span(std::string_view name, Group group, std::int64_t start_ns, std::int64_t end_ns,
                        SpanContext parent, std::initializer_list<Attribute> attributes) {
  if (!is_span_group_enabled(group)) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  internal::RecordBody body{};
  begin_body(*state, body, parent);
  body.name = state->find_name(name);
  body.group = static_cast<std::uint8_t>(group);
  body.flags = internal::kScopeLens;
  body.start_ns = start_ns;
  body.end_ns = std::max(start_ns, end_ns);
  for (const Attribute& attribute : attributes) internal::append_attribute(body, attribute.key, attribute.value);
  internal::write_record(*state, body);
  return context_of(body);
}

AttachedContext::AttachedContext(const CapturedContext& captured) {
  if (!captured.context() || !is_telemetry_active()) return;
  owner_ = internal::thread_state();
  if (owner_ == nullptr) return;
  span_id_ = captured.context().span_id;
  stack_index_ = owner_->stack.push(captured.context());
}

AttachedContext::~AttachedContext() {
  if (owner_ != nullptr && owner_ == internal::thread_state()) owner_->stack.remove(stack_index_, span_id_, true);
}

}  // namespace pharos::lens
