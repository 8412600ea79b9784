#include "pharos/lens/span.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "pharos/base/clock.h"
#include "pharos/lens/context/propagation.h"
#include "pharos/lens/life/span_markers.h"
#include "pharos/lens/record/payload.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens {

using internal::ThreadState;

namespace {

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

/// W3C level 2: the trace id is random. Handed down from the root (lens.md section 7.1).
constexpr std::uint8_t kRandomFlag = 2;

/// Identity of a new span: in the trace of `parent`, or in a new one. Built in one piece: a copy of what was just
/// written field by field would wait for the stores.
[[gnu::always_inline]] inline SpanContext make_context(ThreadState& state, const SpanContext& parent) {
  const bool is_child = static_cast<bool>(parent);
  const std::uint64_t span_id = state.next_id();
  const std::uint64_t high = is_child ? parent.trace_id_high : state.next_id();
  const std::uint64_t low = is_child ? parent.trace_id_low : state.next_id();
  bool is_sampled = !is_child || parent.is_sampled();
  if (state.sampler != nullptr) [[unlikely]] {
    is_sampled = state.sampler->is_sampled(parent, high, low);
  }
  const int random_flag = is_child ? parent.trace_flags & kRandomFlag : kRandomFlag;
  return {high, low, span_id, static_cast<std::uint8_t>(random_flag | (is_sampled ? 1 : 0))};
}

/// All fixed fields but name, group and times.
void begin_body(internal::RecordBody& body, const SpanContext& context, const SpanContext& parent, std::uint8_t flags) {
  body.span_id = context.span_id;
  body.parent_span_id = parent.span_id;
  body.trace_id_high = context.trace_id_high;
  body.trace_id_low = context.trace_id_low;
  body.end_ns = 0;
  body.flags = parent.is_remote && parent ? flags | internal::kParentRemote : flags;
  body.payload_bytes = 0;
  body.num_dropped_attributes = 0;
  body.num_continuations = 0;
  body.num_spilled = 0;
  body.trace_flags = context.trace_flags;
  body.num_dropped_events = 0;
  body.span_number = 0;
  body.num_attributes = 0;
  body.num_dropped_links = 0;
  body.reserved = 0;
}

std::uint8_t flags_of(const StartOptions& options) {
  return static_cast<std::uint8_t>((options.scope == Scope::kLens ? internal::kScopeLens : 0) |
                                   (options.error_style == ErrorStyle::kTypeAndMessage ? internal::kTypedErrors : 0) |
                                   (options.is_ungated ? internal::kUngated : 0));
}

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
  marker_ = other.marker_;
  context_ = other.context_;
  return *this;
}

/// What a span site decides before its span has a parent.
struct internal::SpanStart {
  std::uint8_t group;
  std::uint8_t flags;
  NameId name;
  std::int64_t start_ns = 0;
  bool make_current = true;
  bool drops_tracestate = false;  ///< not in the trace of the current context
};

namespace {

/// Fills a slot and opens it; returns its generation.
std::uint32_t open_slot(ThreadState& state, internal::OpenSlot& slot, const internal::SpanStart& plan,
                        const SpanContext& context, const SpanContext& parent, std::span<const Attribute> attributes) {
  internal::RecordBody& body = slot.body;
  begin_body(body, context, parent, plan.flags);
  body.name = plan.name;
  body.group = plan.group;
  const internal::SpanPayload payload = state.payload_of(slot);
  if (const auto& carried = state.stack.carried(); carried != nullptr && !plan.drops_tracestate) [[unlikely]] {
    if (!carried->tracestate.empty()) internal::append_tracestate(payload, carried->tracestate);
  }
  for (const Attribute& attribute : attributes) {
    internal::append_attribute(payload, attribute.key, attribute.value, internal::is_redacted_key(attribute.key));
  }
  body.start_ns = plan.start_ns != 0 ? plan.start_ns : base::monotonic_ns();
  const auto generation = static_cast<std::uint32_t>(slot.state.load(std::memory_order_relaxed) >> 2) + 1;
  slot.state.store((std::uint64_t{generation} << 2) | internal::kOpen, std::memory_order_release);
  return generation;
}

/// Cold: makes a span of another trace current, without the trace state of the context it leaves.
std::int32_t push_apart(internal::ContextStack& stack, const SpanContext& context) {
  internal::CarriedPointer carried = stack.carried();
  if (carried != nullptr)
    carried = std::make_shared<internal::CarriedState>(internal::CarriedState{"", carried->baggage});
  return stack.push(context, std::move(carried));
}

}  // namespace

/// `parent` is what the stack's top() said if the span descends from the current one.
ManagedSpan ManagedSpan::begin(ThreadState& state, const internal::SpanStart& plan, const SpanContext& parent,
                               std::span<const Attribute> attributes) {
  ManagedSpan span;
  const SpanContext context = make_context(state, parent);
  if (context.is_sampled()) [[likely]] {
    const int index = take_slot(state);
    if (index < 0) return span;
    span.slot_ = state.slots + index;
    span.generation_ = open_slot(state, *span.slot_, plan, context, parent, attributes);
  } else {
    span.slot_ = &internal::dropped_slot;
  }
  span.owner_ = &state;
  span.epoch_ = state.epoch;
  span.num_exceptions_ = std::uncaught_exceptions();
  span.context_ = context;
  if (plan.make_current) {
    span.stack_index_ = plan.drops_tracestate ? push_apart(state.stack, context) : state.stack.push(context);
    if (internal::span_markers.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
      span.marker_ = internal::push_marker(plan.name);
    }
  }
  return span;
}

ManagedSpan ManagedSpan::start(Group group, NameId name, std::initializer_list<Attribute> attributes, Scope scope) {
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  const auto flags = static_cast<std::uint8_t>(scope == Scope::kLens ? internal::kScopeLens : 0);
  const SpanContext parent = state->stack.top();
  return begin(*state, {static_cast<std::uint8_t>(group), flags, name}, parent,
               {attributes.begin(), attributes.size()});
}

ManagedSpan ManagedSpan::start_with(Group group, NameId name, const StartOptions& options,
                                    std::span<const Attribute> attributes) {
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  const SpanContext current = state->stack.top();
  SpanContext parent = options.parent ? options.parent : current;
  if (options.is_root) parent = {};
  const bool is_other_trace =
      parent.trace_id_high != current.trace_id_high || parent.trace_id_low != current.trace_id_low;
  const internal::SpanStart plan{options.is_ungated ? internal::kNoGroup : static_cast<std::uint8_t>(group),
                                 flags_of(options),
                                 name,
                                 options.start_ns,
                                 options.make_current,
                                 is_other_trace};
  ManagedSpan span = begin(*state, plan, parent, attributes);
  span.add_link(options.link);
  return span;
}

ManagedSpan ManagedSpan::start_ungated(NameId name, std::initializer_list<Attribute> attributes) {
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  const SpanContext parent = state->stack.top();
  return begin(*state, {internal::kNoGroup, internal::kUngated | internal::kTypedErrors, name}, parent,
               {attributes.begin(), attributes.size()});
}

bool ManagedSpan::is_recording() const { return slot_ != nullptr && slot_ != &internal::dropped_slot; }

void ManagedSpan::set_attribute(std::string_view key, const AttributeValue& value, bool redacts) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (!claim.is_held()) return;
  internal::put_attribute(owner_->payload_of(*slot_), key, value, redacts && internal::is_redacted_key(key));
}

void ManagedSpan::append_event(std::string_view name, std::span<const Attribute> attributes,
                               std::int64_t time_ns) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (!claim.is_held()) return;
  const std::int64_t event_ns = time_ns != 0 ? time_ns : base::monotonic_ns();
  internal::append_event(owner_->payload_of(*slot_), event_ns, name, attributes);
}

void ManagedSpan::set_error(std::string_view description) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (claim.is_held()) internal::put_error(owner_->payload_of(*slot_), description);
}

void ManagedSpan::set_status_ok() noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (claim.is_held()) internal::put_ok(owner_->payload_of(*slot_));
}

void ManagedSpan::set_exception(const std::exception& exception, bool adds_event) noexcept {
  set_exception(internal::type_name(exception), exception.what(), adds_event);
}

void ManagedSpan::set_exception(std::string_view type, std::string_view message, bool adds_event) noexcept {
  if (!is_of_running_session(epoch_) || !is_recording()) return;
  const std::string stacktrace = adds_event ? internal::stack_trace() : "";
  const std::string typed = std::string(type) + ": " + std::string(message);
  const SlotClaim claim(slot_, generation_);
  if (!claim.is_held()) return;
  const internal::SpanPayload payload = owner_->payload_of(*slot_);
  if (adds_event) internal::append_exception(payload, base::monotonic_ns(), {type, message, stacktrace});
  internal::put_error(payload, (slot_->body.flags & internal::kTypedErrors) != 0 ? std::string_view(typed) : message);
}

void ManagedSpan::set_link(SpanContext context) noexcept {
  if (!is_of_running_session(epoch_)) return;
  const SlotClaim claim(slot_, generation_);
  if (claim.is_held()) internal::append_link(owner_->payload_of(*slot_), context);
}

void ManagedSpan::finish_scope() noexcept {
  const bool is_failing = std::uncaught_exceptions() > num_exceptions_;
  if (is_failing && is_of_running_session(epoch_) && !is_interrupted()) {
    const SlotClaim claim(slot_, generation_);
    if (claim.is_held() && (slot_->body.flags & internal::kIsError) == 0) {
      internal::put_error(owner_->payload_of(*slot_), "exception in flight");
    }
  }
  finish(0);
}

void ManagedSpan::finish(std::int64_t end_ns) noexcept {
  internal::OpenSlot* slot = std::exchange(slot_, nullptr);
  if (!is_of_running_session(epoch_)) return;
  ThreadState* state = internal::thread_state();
  const bool is_owner = state == owner_;
  if (marker_ != 0 && is_owner) [[unlikely]]
    internal::pop_markers(marker_);
  owner_->stack.remove(stack_index_, context_.span_id, is_owner);
  SlotClaim claim(slot, generation_);
  if (!claim.is_held()) return;
  slot->body.end_ns = std::max(end_ns != 0 ? end_ns : base::monotonic_ns(), slot->body.start_ns);
  std::vector<std::byte>& spill = owner_->spills[static_cast<std::size_t>(slot - owner_->slots)];
  if (state != nullptr) internal::write_span(*state, slot->body, spill);
  spill.clear();
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
                       std::span<const Attribute> attributes) {
  if (options.is_ungated ? !is_telemetry_active() : !is_span_group_enabled(group)) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  return ManagedSpan::start_with(group, state->find_name(name), options, attributes);
}

ManagedSpan start_span(Group group, std::string_view name, const StartOptions& options,
                       std::initializer_list<Attribute> attributes) {
  return start_span(group, name, options, std::span(attributes.begin(), attributes.size()));
}

SpanContext record_span(std::string_view name, Group group, std::int64_t start_ns, std::int64_t end_ns,
                        SpanContext parent, std::initializer_list<Attribute> attributes) {
  if (!is_span_group_enabled(group)) return {};
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return {};
  const SpanContext context = make_context(*state, parent);
  if (!context.is_sampled()) return context;
  internal::RecordBody body{};
  std::vector<std::byte> spill;
  begin_body(body, context, parent, internal::kScopeLens);
  body.name = state->find_name(name);
  body.group = static_cast<std::uint8_t>(group);
  body.start_ns = start_ns;
  body.end_ns = std::max(start_ns, end_ns);
  for (const Attribute& attribute : attributes) {
    internal::append_attribute(state->payload_of(body, spill), attribute.key, attribute.value,
                               internal::is_redacted_key(attribute.key));
  }
  internal::write_span(*state, body, spill);
  return context;
}

void record_counters(std::string_view name, std::int64_t start_ns, std::int64_t end_ns,
                     std::span<const Attribute> attributes) {
  if (!is_telemetry_active()) return;
  ThreadState* state = internal::thread_state();
  if (state == nullptr) return;
  internal::RecordBody body{};
  std::vector<std::byte> spill;
  SpanContext identity;  // what its continuations are found by
  identity.span_id = state->next_id();
  begin_body(body, identity, {}, internal::kScopeLens);
  body.name = state->find_name(name);
  body.group = internal::kCounterGroup;
  body.start_ns = start_ns;
  body.end_ns = std::max(start_ns, end_ns);
  for (const Attribute& attribute : attributes)
    internal::append_attribute(state->payload_of(body, spill), attribute.key, attribute.value, false);
  internal::write_counter_event(*state, body, spill);
}

void safe_set_span_attributes(ManagedSpan& span, std::span<const Attribute> attributes,
                              const std::vector<std::string>& redact_keys) {
  for (const Attribute& attribute : attributes) {
    const bool is_text_list = attribute.value.type() == AttributeValue::Type::kTexts;
    if (!is_text_list) {
      span.set_raw(attribute.key, redact_value(attribute.key, attribute.value, redact_keys));
      continue;
    }
    const std::vector<std::string_view> redacted(attribute.value.size(), "[REDACTED]");
    const bool is_secret = redact_value(attribute.key, "", redact_keys).as_text() != "";
    span.set_raw(attribute.key, is_secret ? AttributeValue(redacted) : attribute.value);
  }
}

void safe_set_span_attributes(ManagedSpan& span, std::initializer_list<Attribute> attributes,
                              const std::vector<std::string>& redact_keys) {
  safe_set_span_attributes(span, std::span(attributes.begin(), attributes.size()), redact_keys);
}

bool is_span_group_enabled(std::string_view name) {
  const std::optional<Group> group = find_group(name);
  return group && is_span_group_enabled(*group);
}

void set_enabled_span_groups(GroupMask groups) {
  constexpr GroupMask kActive = GroupMask{1} << kActiveBit;
  std::uint64_t before = enabled_groups.load(std::memory_order_relaxed);
  while ((before & kActive) != 0 && !enabled_groups.compare_exchange_weak(before, (groups & kAllGroups) | kActive)) {
  }
}

std::vector<std::string> set_enabled_span_groups(std::span<const std::string> names) {
  GroupMask groups = 0;
  std::vector<std::string> unknown;
  for (const std::string& name : names) {
    if (const std::optional<Group> group = find_group(name)) {
      groups |= group_bit(*group);
    } else {
      unknown.push_back(name);
    }
  }
  set_enabled_span_groups(groups);
  return unknown;
}

CapturedContext CapturedContext::current() {
  CapturedContext captured(current_context());
  if (!is_telemetry_active()) return captured;
  if (ThreadState* state = internal::thread_state()) captured.carried_ = state->stack.carried();
  return captured;
}

AttachedContext::AttachedContext(const CapturedContext& captured) {
  if (captured.context() || captured.carried_ != nullptr) attach(captured.context(), captured.carried_);
}

AttachedContext::AttachedContext(const RemoteContext& remote) {
  internal::CarriedPointer carried;
  const std::string tracestate = remote.context ? remote.tracestate : "";
  if (!tracestate.empty() || !remote.baggage.empty()) {
    carried = std::make_shared<internal::CarriedState>(internal::CarriedState{tracestate, remote.baggage});
  }
  attach(remote.context, std::move(carried));
}

void AttachedContext::attach(const SpanContext& context, internal::CarriedPointer carried) {
  if (!is_telemetry_active()) return;
  owner_ = internal::thread_state();
  if (owner_ == nullptr) return;
  SpanContext entry = context;
  if (!context) entry.span_id = owner_->next_id();
  span_id_ = entry.span_id;
  static_cast<void>(owner_->stack.top());  // drops what others have ended
  stack_index_ = owner_->stack.push(entry, std::move(carried));
  if (stack_index_ >= 0) owner_->stack.entries[static_cast<std::size_t>(stack_index_)].is_none = !context;
}

AttachedContext::~AttachedContext() {
  if (owner_ != nullptr && owner_ == internal::thread_state()) owner_->stack.remove(stack_index_, span_id_, true);
}

}  // namespace pharos::lens
