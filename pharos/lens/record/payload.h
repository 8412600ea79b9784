// Writing and reading the payload of a record.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "pharos/lens/data/span_data.h"
#include "pharos/lens/record/limits.h"
#include "pharos/lens/record/ring_format.h"

namespace pharos::lens::internal {

/// Where the entries of an open span go: into its record while they fit, then into a buffer on the heap.
struct SpanPayload {
  RecordBody& body;
  std::vector<std::byte>& spill;
  std::size_t spill_capacity_bytes;
  const RecordLimits& limits;
};

/// True if text under `key` must not be written: one of default_redact_keys(), in whatever case.
bool is_redacted_key(std::string_view key);

/// `left` and `right` are equal but for the case of ASCII letters.
bool is_same_key(std::string_view left, std::string_view right);

/// Appends an attribute, after the oldest has made way when the limit is reached; no key or no value: nothing happens.
/// One that does not fit is counted as dropped. `redacts`: text and elements of lists of text become "[REDACTED]".
void append_attribute(const SpanPayload& payload, std::string_view key, const AttributeValue& value, bool redacts);

/// As append_attribute; an attribute of that key goes first.
void put_attribute(const SpanPayload& payload, std::string_view key, const AttributeValue& value, bool redacts);

/// Status ERROR; the last description stays. Nothing happens if the status is OK.
void put_error(const SpanPayload& payload, std::string_view description);

/// Status OK: final (OpenTelemetry, "Set Status").
void put_ok(const SpanPayload& payload);

/// An `exception` event at `time_ns` (lens.md section 5.2); no stack trace: the attribute is left out.
struct ExceptionText {
  std::string_view type;
  std::string_view message;
  std::string_view stacktrace;
};
void append_exception(const SpanPayload& payload, std::int64_t time_ns, const ExceptionText& text);

void append_event(const SpanPayload& payload, std::int64_t time_ns, std::string_view name,
                  std::span<const Attribute> attributes);

void append_link(const SpanPayload& payload, const SpanContext& link);

void append_tracestate(const SpanPayload& payload, std::string_view tracestate);

/// Everything of a record but its name and thread; `spilled` are the entries that were not in it. Damaged payload ends
/// at the damage. Entries the body says were spilled and that are not there count as dropped attributes.
SpanData decode(const RecordBody& body, std::span<const std::byte> spilled);

/// Marks a span that was still open: attribute and event `nemo.span.truncated` with `reason` (lens.md section 2.4).
void mark_truncated(SpanData& span, std::int64_t time_ns, const std::string& reason);

/// Name of a type as in source: "std::runtime_error".
std::string type_name(const std::exception& exception);

/// The calls that lead to the caller, one a line.
std::string stack_trace();

}  // namespace pharos::lens::internal
