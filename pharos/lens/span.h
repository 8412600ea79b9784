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
#include <string_view>
#include <utility>

#include "pharos/lens/attribute.h"
#include "pharos/lens/group.h"

namespace pharos::lens {

/// Bit per span group; zero until telemetry is initialised. Changed at run time by live control. Bit 63 says that
/// telemetry is active (spans without a group).
extern constinit std::atomic<std::uint64_t> enabled_groups;

inline constexpr int kActiveBit = 63;

/// One relaxed load, a shift and an and. `group` must be one of the sixteen.
inline bool is_span_group_enabled(Group group) {
  return (enabled_groups.load(std::memory_order_relaxed) >> static_cast<int>(group)) & 1;
}

/// True between initialisation and shutdown of telemetry, whatever the groups.
inline bool is_telemetry_active() { return enabled_groups.load(std::memory_order_relaxed) >> kActiveBit; }

/// Identity of a span as others refer to it. All zero: none.
struct SpanContext {
  std::uint64_t trace_id_high = 0;
  std::uint64_t trace_id_low = 0;
  std::uint64_t span_id = 0;
  std::uint8_t trace_flags = 0x03;  ///< W3C: 1 sampled, 2 random trace id
  bool is_remote = false;           ///< came from another process

  explicit operator bool() const { return span_id != 0; }
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

/// How an explicit span starts.
struct StartOptions {
  SpanContext parent = {};    ///< explicit parent; none: the thread's current span
  bool is_root = false;       ///< force a new trace, whatever is current
  bool make_current = true;   ///< current until it ends, or a span beside the call tree
  std::int64_t start_ns = 0;  ///< CLOCK_MONOTONIC; 0: now
  Scope scope = Scope::kLens;
  SpanContext link = {};  ///< a span this one refers to; more with add_link()
};

namespace internal {
struct OpenSlot;
struct ThreadState;
}  // namespace internal

/// A span that may be absent. Tests false when its group is off, telemetry is inactive or it has ended; then every call
/// does nothing. Ends at scope exit; an exception in flight marks it as failed. A span may be moved, also to another
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
        context_(other.context_) {}
  ManagedSpan& operator=(ManagedSpan&& other) noexcept;
  ~ManagedSpan() {
    if (slot_ != nullptr) finish_scope();
  }

  /// Starts a span, whatever its group's state; span sites check the group first.
  static ManagedSpan start(Group group, NameId name, std::initializer_list<Attribute> attributes,
                           Scope scope = Scope::kHelpers);
  static ManagedSpan start_with(Group group, NameId name, const StartOptions& options,
                                std::initializer_list<Attribute> attributes);
  /// A span of no group.
  static ManagedSpan start_ungated(NameId name, std::initializer_list<Attribute> attributes);

  explicit operator bool() const { return slot_ != nullptr; }

  /// Sets an attribute; a key set before is replaced. Text values of keys such as `password` become "[REDACTED]"
  /// (lens.md section 5.3). The record has room for about 300 bytes of keys and values: text that does not fit is cut
  /// and marked, an attribute that does not fit is counted as dropped.
  void set(std::string_view key, AttributeValue value) {
    if (slot_ != nullptr) set_attribute(key, value);
  }

  /// Marks the span as failed: status ERROR with `description`.
  void fail(std::string_view description) {
    if (slot_ != nullptr) set_error(description);
  }

  /// As fail(), plus an `exception` event with type and message. A scope that is left by an exception calls it itself,
  /// but cannot know the text (C++ hides an exception that nobody has caught yet): it says "exception in flight".
  /// traced() knows it.
  void record_exception(const std::exception& exception) {
    if (slot_ != nullptr) set_exception(exception);
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
  void set_attribute(std::string_view key, const AttributeValue& value) noexcept;
  void set_error(std::string_view description) noexcept;
  void set_exception(const std::exception& exception) noexcept;
  void set_link(SpanContext context) noexcept;

  internal::OpenSlot* slot_ = nullptr;
  internal::ThreadState* owner_ = nullptr;
  std::uint32_t generation_ = 0;
  std::uint32_t epoch_ = 0;
  std::int32_t stack_index_ = -1;
  std::int32_t num_exceptions_ = 0;
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
ManagedSpan start_span(Group group, std::string_view name, const StartOptions& options = {},
                       std::initializer_list<Attribute> attributes = {});

/// A span that is over: times of CLOCK_MONOTONIC, parent none = a trace of its own. Returns its identity.
SpanContext record_span(std::string_view name, Group group, std::int64_t start_ns, std::int64_t end_ns,
                        SpanContext parent, std::initializer_list<Attribute> attributes = {});

/// The thread's current span, to be carried to another thread:
///
///     const CapturedContext context = CapturedContext::current();
///     std::thread worker([context] { AttachedContext attached(context); … });
class CapturedContext {
 public:
  static CapturedContext current() { return CapturedContext(current_context()); }
  CapturedContext() = default;
  explicit CapturedContext(SpanContext context) : context_(context) {}
  SpanContext context() const { return context_; }

 private:
  SpanContext context_;
};

/// Makes a captured context current in this thread until scope exit. Belongs to the thread that made it.
class AttachedContext {
 public:
  explicit AttachedContext(const CapturedContext& captured);
  ~AttachedContext();
  AttachedContext(const AttachedContext&) = delete;
  AttachedContext& operator=(const AttachedContext&) = delete;

 private:
  internal::ThreadState* owner_ = nullptr;
  std::uint64_t span_id_ = 0;
  std::int32_t stack_index_ = -1;
};

/// Calls `function` inside a span of `group`, checked at each call; returns what it returns. An exception is recorded
/// with type and text and passes on.
template <typename Function>
decltype(auto) traced(Group group, std::string_view name, Function&& function) {
  if (!is_span_group_enabled(group)) return std::forward<Function>(function)();
  ManagedSpan span = start_span(group, name);
  try {
    return std::forward<Function>(function)();
  } catch (const std::exception& exception) {
    span.record_exception(exception);
    throw;
  }
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
