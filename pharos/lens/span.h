// Span sites. A site that is off costs one load and one branch; a site that is on writes one fixed-size record into a
// memory-mapped ring: no lock, no allocation, no system call (docs/lens.md, "Cost").
//
//     PHAROS_SPAN(span, lens::Group::kStep, "megatron.train.iteration", {"megatron.iteration", iteration});
//     const StepResult result = run_step();
//     if (span) span.set("megatron.skipped", result.is_skipped);
//
// Semantics are those of lens.md section 5: the span is the thread's current one until it ends; its parent is the span
// that was current, or none (a new trace); a thread starts without a current span, a CapturedContext carries one over.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "pharos/lens/attribute.h"
#include "pharos/lens/group.h"
#include "pharos/lens/life/interrupt.h"

namespace pharos::lens {

/// Bit per span group; zero until telemetry is initialised. Changed at run time by live control. Bit 63 says that
/// telemetry is active (spans without a group).
extern constinit std::atomic<std::uint64_t> enabled_groups;

inline constexpr int kActiveBit = 63;

/// False in a build with PHAROS_LENS=OFF: every site compiles to nothing, telemetry cannot be started.
#ifdef PHAROS_LENS_OFF
inline constexpr bool kIsLensBuilt = false;
#else
inline constexpr bool kIsLensBuilt = true;
#endif

/// One relaxed load, a shift and an and.
inline bool is_span_group_enabled(Group group) {
  return kIsLensBuilt && ((enabled_groups.load(std::memory_order_relaxed) >> static_cast<int>(group)) & 1) != 0;
}

/// True between initialisation and shutdown of telemetry, whatever the groups.
inline bool is_telemetry_active() {
  return kIsLensBuilt && (enabled_groups.load(std::memory_order_relaxed) >> kActiveBit) != 0;
}

/// The same by name, in exactly that spelling; false for a name that is no group.
bool is_span_group_enabled(std::string_view name);

/// Replaces the set of enabled groups while telemetry is active, whatever set-up chose; nothing happens otherwise.
void set_enabled_span_groups(GroupMask groups);

/// The same by names of groups (not presets); returns those that are no groups, which change nothing.
std::vector<std::string> set_enabled_span_groups(std::span<const std::string> names);

/// Identity of a span as others refer to it. All zero: none.
struct SpanContext {
  std::uint64_t trace_id_high = 0;
  std::uint64_t trace_id_low = 0;
  std::uint64_t span_id = 0;
  std::uint8_t trace_flags = 0x03;  ///< W3C: 1 sampled, 2 random trace id
  bool is_remote = false;           ///< came from another process

  explicit operator bool() const { return span_id != 0; }
  bool is_sampled() const { return (trace_flags & 1) != 0; }
  bool operator==(const SpanContext& other) const {
    return trace_id_high == other.trace_id_high && trace_id_low == other.trace_id_low && span_id == other.span_id;
  }
};

/// Current span of the calling thread; all zero if there is none.
SpanContext current_context();

/// Number of an interned span name, the same for the life of the process.
using NameId = std::uint32_t;

/// Number of `name`; makes a copy at the first use. Takes a lock: span sites call it once.
NameId intern_name(std::string_view name);

/// Where a span comes from; becomes the instrumentation scope "nemo.lens.helpers" or "nemo.lens".
enum class Scope : std::uint8_t { kHelpers, kLens };

/// How the status of a failed span describes an exception (lens.md section 5.2): as managed_span, or as span_cm does.
enum class ErrorStyle : std::uint8_t { kMessage, kTypeAndMessage };

/// How an explicit span starts.
struct StartOptions {
  SpanContext parent = {};    ///< explicit parent; none: the thread's current span
  bool is_root = false;       ///< force a new trace, whatever is current
  bool make_current = true;   ///< current until it ends, or a span beside the call tree
  std::int64_t start_ns = 0;  ///< CLOCK_MONOTONIC; 0: now
  Scope scope = Scope::kLens;
  SpanContext link = {};  ///< a span this one refers to; more with add_link()
  ErrorStyle error_style = ErrorStyle::kTypeAndMessage;
  bool is_ungated = false;  ///< of no group, whatever group is given
};

struct RemoteContext;  // propagation.h

namespace internal {
struct CarriedState;
struct OpenSlot;
struct SpanStart;
struct ThreadState;
}  // namespace internal

/// A span that may be absent. Tests false when its group is off, telemetry is inactive or it has ended; then every call
/// does nothing. One that the sampler did not choose tests true, records nothing and is current all the same. Ends at
/// scope exit; an exception in flight that is no Interrupt marks it as failed. A span may be moved, also to another
/// thread, but used by one thread at a time.
class ManagedSpan {
 public:
  ManagedSpan() = default;
  ManagedSpan(ManagedSpan&& other) noexcept
      : slot_(std::exchange(other.slot_, nullptr)),
        owner_(other.owner_),
        generation_(other.generation_),
        epoch_(other.epoch_),
        stack_index_(other.stack_index_),
        num_exceptions_(other.num_exceptions_),
        marker_(other.marker_),
        context_(other.context_) {}
  ManagedSpan& operator=(ManagedSpan&& other) noexcept;
  ~ManagedSpan() {
    if (slot_ != nullptr) finish_scope();
  }

  /// Starts a span, whatever its group's state; span sites check the group first.
  static ManagedSpan start(Group group, NameId name, std::initializer_list<Attribute> attributes,
                           Scope scope = Scope::kHelpers);
  static ManagedSpan start_with(Group group, NameId name, const StartOptions& options,
                                std::span<const Attribute> attributes);
  /// A span of no group.
  static ManagedSpan start_ungated(NameId name, std::initializer_list<Attribute> attributes);

  explicit operator bool() const { return slot_ != nullptr; }

  /// False also for a span that was not sampled.
  bool is_recording() const;

  /// Sets an attribute; a key set before is replaced and moves to the end. No value, an empty key: nothing happens.
  /// Text of keys such as `password` becomes "[REDACTED]" (redact_value). Up to 304 bytes of keys and values cost no
  /// allocation; RecordLimits and kMaxValueBytes say how much more there can be. What does not fit is counted.
  void set(std::string_view key, AttributeValue value) {
    if (slot_ != nullptr) set_attribute(key, value, true);
  }

  /// As set(), but nothing is redacted.
  void set_raw(std::string_view key, AttributeValue value) {
    if (slot_ != nullptr) set_attribute(key, value, false);
  }

  /// Adds an event that happens now, or at `time_ns` of CLOCK_MONOTONIC. Its attributes are redacted like those of
  /// set().
  void add_event(std::string_view name, std::span<const Attribute> attributes, std::int64_t time_ns = 0) {
    if (slot_ != nullptr) append_event(name, attributes, time_ns);
  }
  void add_event(std::string_view name, std::initializer_list<Attribute> attributes = {}, std::int64_t time_ns = 0) {
    add_event(name, std::span(attributes.begin(), attributes.size()), time_ns);
  }

  /// Marks the span as failed: status ERROR with `description`, unless it is OK.
  void fail(std::string_view description) {
    if (slot_ != nullptr) set_error(description);
  }

  /// Status OK. Final: later failures add their events only.
  void set_ok() {
    if (slot_ != nullptr) set_status_ok();
  }

  /// As fail(), described in the span's ErrorStyle, plus an `exception` event with type, message and the calls that led
  /// here; without the event if `adds_event` is false. A scope that is left by an exception nobody described cannot
  /// know the text (C++ hides an exception that nobody has caught yet): its status says "exception in flight".
  /// with_span() and traced() know it.
  void record_exception(const std::exception& exception, bool adds_event = true) {
    if (slot_ != nullptr) set_exception(exception, adds_event);
  }
  void record_exception(std::string_view type, std::string_view message, bool adds_event = true) {
    if (slot_ != nullptr) set_exception(type, message, adds_event);
  }

  /// Refers to another span, for example the previous block of a chain.
  void add_link(SpanContext context) {
    if (slot_ != nullptr && context) set_link(context);
  }

  /// Ends the span now, or at `end_ns` of CLOCK_MONOTONIC. A second call does nothing.
  void end(std::int64_t end_ns = 0) {
    if (slot_ != nullptr) finish(end_ns);
  }

  /// Identity; stays valid after the end. All zero if the span never existed.
  SpanContext context() const { return context_; }

 private:
  void finish_scope() noexcept;
  void finish(std::int64_t end_ns) noexcept;
  static ManagedSpan begin(internal::ThreadState& state, const internal::SpanStart& plan, const SpanContext& parent,
                           std::span<const Attribute> attributes);
  void set_attribute(std::string_view key, const AttributeValue& value, bool redacts) noexcept;
  void append_event(std::string_view name, std::span<const Attribute> attributes, std::int64_t time_ns) noexcept;
  void set_error(std::string_view description) noexcept;
  void set_status_ok() noexcept;
  void set_exception(const std::exception& exception, bool adds_event) noexcept;
  void set_exception(std::string_view type, std::string_view message, bool adds_event) noexcept;
  void set_link(SpanContext context) noexcept;

  internal::OpenSlot* slot_ = nullptr;
  internal::ThreadState* owner_ = nullptr;
  std::uint32_t generation_ = 0;
  std::uint32_t epoch_ = 0;
  std::int32_t stack_index_ = -1;
  std::int32_t num_exceptions_ = 0;
  std::uint32_t marker_ = 0;  ///< depth of the range that shows it to a profiler (span_markers.h); 0: none
  SpanContext context_;
};

/// Span of a name known only at run time; tests false when `group` is off. Attributes are evaluated in any case: use
/// PHAROS_SPAN where the name is a literal.
ManagedSpan managed_span(Group group, std::string_view name, const Attribute& first = {}, const Attribute& second = {},
                         const Attribute& third = {}, const Attribute& fourth = {});

/// A cold span: recorded whenever telemetry is active.
using SpanScope = ManagedSpan;
SpanScope span_cm(std::string_view name, const Attribute& first = {}, const Attribute& second = {},
                  const Attribute& third = {}, const Attribute& fourth = {});

/// A span with explicit parent, start, links or without becoming current; ended by end() or at scope exit.
ManagedSpan start_span(Group group, std::string_view name, const StartOptions& options,
                       std::span<const Attribute> attributes);
ManagedSpan start_span(Group group, std::string_view name, const StartOptions& options = {},
                       std::initializer_list<Attribute> attributes = {});

/// Sets several attributes; text of `redact_keys` becomes "[REDACTED]", a given set replaces the default one (lens.md
/// section 5.3). Nothing happens on a span that is absent, has ended or is not sampled.
void safe_set_span_attributes(ManagedSpan& span, std::span<const Attribute> attributes,
                              const std::vector<std::string>& redact_keys = default_redact_keys());
void safe_set_span_attributes(ManagedSpan& span, std::initializer_list<Attribute> attributes,
                              const std::vector<std::string>& redact_keys = default_redact_keys());

/// A span that is over: times of CLOCK_MONOTONIC, parent none = a trace of its own. Returns its identity.
SpanContext record_span(std::string_view name, Group group, std::int64_t start_ns, std::int64_t end_ns,
                        SpanContext parent, std::initializer_list<Attribute> attributes = {});

/// What `attributes` count happened between the two times of CLOCK_MONOTONIC: a counter event. Kept in the ring of the
/// calling thread, whatever groups are on, and never exported; nothing happens without telemetry.
void record_counters(std::string_view name, std::int64_t start_ns, std::int64_t end_ns,
                     std::span<const Attribute> attributes);

/// The thread's current span, to be carried to another thread, with trace state and baggage:
///
///     const CapturedContext context = CapturedContext::current();
///     std::thread worker([context] { AttachedContext attached(context); … });
class CapturedContext {
 public:
  static CapturedContext current();
  CapturedContext() = default;
  explicit CapturedContext(SpanContext context) : context_(context) {}
  SpanContext context() const { return context_; }

 private:
  friend class AttachedContext;
  SpanContext context_;
  std::shared_ptr<const internal::CarriedState> carried_;
};

/// Makes a context current in this thread until scope exit. Belongs to the thread that made it. Attaching an empty
/// captured context changes nothing; attaching a remote context without a valid span hides the current one: spans below
/// are roots (lens.md section 7.1). Needs active telemetry.
class AttachedContext {
 public:
  explicit AttachedContext(const CapturedContext& captured);
  explicit AttachedContext(const RemoteContext& remote);
  ~AttachedContext();
  AttachedContext(const AttachedContext&) = delete;
  AttachedContext& operator=(const AttachedContext&) = delete;

 private:
  void attach(const SpanContext& context, std::shared_ptr<const internal::CarriedState> carried);

  internal::ThreadState* owner_ = nullptr;
  std::uint64_t span_id_ = 0;
  std::int32_t stack_index_ = -1;
};

/// Calls `function` (with the span, if it takes one) inside `span`, which ends then; returns what it returns. An
/// exception is recorded with type and text, as an event too unless `adds_event` is false, and passes on; an Interrupt
/// only passes.
///
///     with_span(lens::span_cm("megatron.export"), [&](lens::ManagedSpan& span) { … });
template <typename Function>
decltype(auto) with_span(ManagedSpan span, Function&& function, bool adds_event = true) {
  try {
    if constexpr (std::is_invocable_v<Function, ManagedSpan&>) {
      return std::forward<Function>(function)(span);
    } else {
      return std::forward<Function>(function)();
    }
  } catch (const Interrupt&) {
    throw;
  } catch (const std::exception& exception) {
    span.record_exception(exception, adds_event);
    throw;
  }
}

/// Calls `function` inside a span of `group`, checked at each call: lens.md's trace_fn.
template <typename Function>
decltype(auto) traced(Group group, std::string_view name, Function&& function) {
  return with_span(start_span(group, name), std::forward<Function>(function));
}

}  // namespace pharos::lens

/// Declares ManagedSpan `variable`. `name` is a literal, interned once per site; attributes `{"key", value}, …` are
/// evaluated only when the group is on.
#define PHAROS_SPAN(variable, group, name, ...)                                                \
  ::pharos::lens::ManagedSpan variable =                                                       \
      ::pharos::lens::is_span_group_enabled(group)                                             \
          ? ::pharos::lens::ManagedSpan::start((group),                                        \
                                               [] {                                            \
                                                 static const ::pharos::lens::NameId name_id = \
                                                     ::pharos::lens::intern_name(name);        \
                                                 return name_id;                               \
                                               }(),                                            \
                                               {__VA_ARGS__})                                  \
          : ::pharos::lens::ManagedSpan()

#define PHAROS_LENS_JOIN_TOKENS(left, right) left##right
#define PHAROS_LENS_JOIN(left, right) PHAROS_LENS_JOIN_TOKENS(left, right)

/// Marks the rest of the scope as a region: a span of group trace_region with that name, below the current one. Our
/// convention for Megatron's profiler markers (megatron-telemetry.md section 6.3): never a goodput span.
#define PHAROS_TRACE_REGION(name) \
  PHAROS_SPAN(PHAROS_LENS_JOIN(pharos_trace_region_, __COUNTER__), ::pharos::lens::Group::kTraceRegion, name)
