// Trace context between processes: W3C headers in a carrier, links to remote spans, the broadcast to all ranks (lens.md
// section 7).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pharos/lens/span.h"

namespace pharos::lens {

/// Keys `traceparent`, `tracestate`, `baggage`, all lower case; others are left alone.
using Carrier = std::map<std::string, std::string>;

/// In the order they came; a key stands for its last value.
using Baggage = std::vector<std::pair<std::string, std::string>>;

/// What a carrier said. Attach it to make spans its children:
///
///     const AttachedContext attached(extract_context(carrier));
struct RemoteContext {
  SpanContext context;     ///< is_remote; all zero: none, or one that is not valid
  std::string tracestate;  ///< as to be handed on; empty without a valid context
  Baggage baggage;         ///< decoded; never copied to attributes
};

/// Writes the thread's current context: `traceparent` if there is a valid one, `tracestate` and `baggage` if they are
/// not empty (at most 32 members; at most 180 pairs, 4096 bytes a pair, 8192 in all).
void inject_context(Carrier& carrier);

/// Invalid headers count as absent; never an error. Does not look at the current context.
RemoteContext extract_context(const Carrier& carrier);

/// `00-<trace id>-<span id>-<flags>`, lower case.
std::string format_traceparent(const SpanContext& context);

/// All zero unless `text` is a traceparent: lower-case hexadecimal, ids not zero, version not ff, nothing behind the
/// flags in version 00 and only "-…" in later ones. Flags are kept as given.
SpanContext parse_traceparent(std::string_view text);

/// Members of a valid tracestate joined by commas, at most 32; empty if one of them is malformed or double.
std::string parse_tracestate(std::string_view text);

Baggage parse_baggage(std::string_view text);
std::string format_baggage(const Baggage& baggage);

/// A span that is linked to a remote one, if that is valid: child of the current span, not current itself, ended by the
/// caller or at scope exit (lens.md section 7.3). Recorded whenever telemetry is active.
ManagedSpan create_linked_span(std::string_view name, const RemoteContext& remote,
                               std::initializer_list<Attribute> attributes = {});
ManagedSpan create_linked_span(std::string_view name, const Carrier& carrier,
                               std::initializer_list<Attribute> attributes = {});

/// The context all ranks of a run agree on for a step without talking to each other: ids are those of SHA-256 of the
/// run id and the step (lens.md section 15, B2 and B3). It counts as remote and sampled.
SpanContext derive_trace_context(std::string_view run_id, std::int64_t step);

/// The broadcast payload of nemo-lens: a JSON object in Python's default style, ASCII only, `traceparent` first. 74
/// bytes with a traceparent alone, "{}" for an empty carrier.
std::string encode_trace_broadcast(const Carrier& carrier);

/// None if `bytes` is no JSON object; members that are no text are left out.
std::optional<Carrier> decode_trace_broadcast(std::string_view bytes);

/// The same in 64 bytes, without trace state and baggage: "PHTC", u8 version 1, u8 1 if there is a context, u8 trace
/// flags, u8 0, trace id and span id big endian, zeros.
using TraceFrame = std::array<std::byte, 64>;
TraceFrame encode_trace_frame(const SpanContext& context);

/// The context, which counts as remote, all zero if the frame says there is none; nothing if this is no such frame.
std::optional<SpanContext> decode_trace_frame(std::span<const std::byte> frame);

/// Sends `bytes` of rank `src_rank` to all ranks, in place. Collective: all ranks call it with the same length.
using BroadcastBytes = std::function<void(std::span<std::byte> bytes, int src_rank)>;

enum class TraceBroadcast : std::uint8_t {
  kFrame,  ///< one collective of 64 bytes
  kJson,   ///< two collectives, an int64 length and the JSON: what nemo-lens does, with trace state and baggage
};

/// The current context of `src_rank` on all ranks, as a carrier; empty if it has none. Attaches nothing. Every rank
/// must call it, or none. What `broadcast` throws passes on.
Carrier broadcast_trace_context(int rank, int src_rank, const BroadcastBytes& broadcast,
                                TraceBroadcast form = TraceBroadcast::kFrame);

/// The carrier that a pipeline schedule links its receives to, one a key (a schedule, a model chunk); empty: none. Any
/// thread.
void set_pp_trace_carrier(Carrier carrier, std::string_view key = "");
Carrier get_pp_trace_carrier(std::string_view key = "");

}  // namespace pharos::lens
