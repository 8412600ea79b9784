// Writing and reading the payload of a record.
#pragma once

#include <exception>
#include <string_view>

#include "pharos/lens/exporter.h"
#include "pharos/lens/record/ring_format.h"

namespace pharos::lens::internal {

/// Longest text of an attribute or description; longer ones are cut at a UTF-8 boundary and end in "…".
inline constexpr std::size_t kMaxTextBytes = 160;

/// True for keys whose text is never recorded (lens.md section 5.3).
bool is_redacted_key(std::string_view key);

/// Appends an attribute; one that does not fit is counted in the body.
void append_attribute(RecordBody& body, std::string_view key, const AttributeValue& value);

/// Removes an attribute of that key, if there is one.
void erase_attribute(RecordBody& body, std::string_view key);

/// Status ERROR; the last description stays.
void put_error(RecordBody& body, std::string_view description);

/// An `exception` event at `time_ns`.
void append_exception(RecordBody& body, std::int64_t time_ns, std::string_view type, std::string_view message);

void append_link(RecordBody& body, SpanContext link);

/// Everything of a record but its name and thread. Damaged payload ends at the damage.
SpanData decode(const RecordBody& body);

/// Marks a span that was still open: attribute and event `nemo.span.truncated` with `reason` (lens.md section 2.4).
void mark_truncated(SpanData& span, std::int64_t time_ns, const std::string& reason);

/// Name of a type as in source: "std::runtime_error".
std::string type_name(const std::exception& exception);

}  // namespace pharos::lens::internal
