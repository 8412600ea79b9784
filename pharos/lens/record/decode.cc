// Records as data.
#include <cxxabi.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <typeinfo>

#include "pharos/lens/record/entry.h"
#include "pharos/lens/record/payload.h"

namespace pharos::lens::internal {
namespace {

/// Takes values off the front of bytes that may end anywhere.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T take() {
    T value{};
    if (sizeof value <= bytes_.size()) std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(std::min(sizeof value, bytes_.size()));
    return value;
  }
  std::string take_text() { return take_bytes(take<std::uint16_t>()); }
  std::string take_rest() { return take_bytes(bytes_.size()); }
  bool is_at_end() const { return bytes_.empty(); }
  std::size_t size() const { return bytes_.size(); }
  std::string_view rest() const { return bytes_; }

 private:
  std::string take_bytes(std::size_t num_bytes) {
    std::string text(bytes_.substr(0, num_bytes));
    bytes_.remove_prefix(text.size());
    return text;
  }

  std::string_view bytes_;
};

template <typename T>
std::vector<T> decode_numbers(Cursor cursor) {
  std::vector<T> values(cursor.size() / sizeof(T));
  for (T& value : values) value = cursor.take<T>();
  return values;
}

StoredValue decode_value(const Entry& entry) {
  Cursor cursor(entry.value);
  switch (entry.header.kind) {
    case EntryKind::kBool:
      return cursor.take<std::uint8_t>() != 0;
    case EntryKind::kInteger:
      return cursor.take<std::int64_t>();
    case EntryKind::kDouble:
      return cursor.take<double>();
    case EntryKind::kIntegers:
      return decode_numbers<std::int64_t>(cursor);
    case EntryKind::kDoubles:
      return decode_numbers<double>(cursor);
    case EntryKind::kTexts: {
      std::vector<std::string> texts;
      while (!cursor.is_at_end()) texts.push_back(cursor.take_text());
      return texts;
    }
    case EntryKind::kBools: {
      std::vector<bool> flags;
      while (!cursor.is_at_end()) flags.push_back(cursor.take<std::uint8_t>() != 0);
      return flags;
    }
    default:
      return std::string(entry.value);
  }
}

void put_stored(StoredAttributes& attributes, std::string_view key, StoredValue value) {
  for (auto& [known, stored] : attributes) {
    if (known == key) {
      stored = std::move(value);
      return;
    }
  }
  attributes.emplace_back(key, std::move(value));
}

SpanEvent decode_exception(std::string_view value) {
  Cursor cursor(value);
  SpanEvent event;
  event.name = "exception";
  event.time_ns = cursor.take<std::int64_t>();
  event.attributes.emplace_back("exception.type", cursor.take_text());
  event.attributes.emplace_back("exception.message", cursor.take_text());
  if (!cursor.is_at_end()) event.attributes.emplace_back("exception.stacktrace", cursor.take_rest());
  event.attributes.emplace_back("exception.escaped", std::string("False"));
  return event;
}

SpanEvent decode_event(std::string_view value) {
  Cursor cursor(value);
  SpanEvent event;
  event.time_ns = cursor.take<std::int64_t>();
  event.num_dropped_attributes = cursor.take<std::uint16_t>();
  event.name = cursor.take_text();
  const std::string_view rest = cursor.rest();
  for_each_entry({reinterpret_cast<const std::byte*>(rest.data()), rest.size()}, [&event](const Entry& entry) {
    if (!is_attribute(entry.header.kind)) return false;
    put_stored(event.attributes, entry.key, decode_value(entry));
    return true;
  });
  return event;
}

SpanContext decode_link(std::string_view value) {
  Cursor cursor(value);
  SpanContext link;
  link.trace_id_high = cursor.take<std::uint64_t>();
  link.trace_id_low = cursor.take<std::uint64_t>();
  link.span_id = cursor.take<std::uint64_t>();
  link.trace_flags = cursor.take<std::uint8_t>();
  link.is_remote = cursor.take<std::uint8_t>() != 0;
  return link;
}

/// False for an entry that cannot be one of this version.
bool decode_entry(SpanData& span, const Entry& entry) {
  switch (entry.header.kind) {
    case EntryKind::kStatusDescription:
      span.status_description = std::string(entry.value);
      return true;
    case EntryKind::kTraceState:
      span.tracestate = std::string(entry.value);
      return true;
    case EntryKind::kLink:
      span.links.push_back(decode_link(entry.value));
      return true;
    case EntryKind::kException:
      span.events.push_back(decode_exception(entry.value));
      return true;
    case EntryKind::kEvent:
      span.events.push_back(decode_event(entry.value));
      return true;
    default:
      if (!is_attribute(entry.header.kind)) return false;
      put_stored(span.attributes, entry.key, decode_value(entry));
      return true;
  }
}

StatusCode decode_status(std::uint8_t flags) {
  if ((flags & kIsOk) != 0) return StatusCode::kOk;
  return (flags & kIsError) != 0 ? StatusCode::kError : StatusCode::kUnset;
}

}  // namespace

SpanData decode(const RecordBody& body, std::span<const std::byte> spilled) {
  SpanData span;
  span.is_ungated = (body.flags & kUngated) != 0 || body.group >= kMaxGroups;
  span.group = span.is_ungated ? Group::kJob : static_cast<Group>(body.group);
  span.scope = (body.flags & kScopeLens) != 0 ? Scope::kLens : Scope::kHelpers;
  span.context = {body.trace_id_high, body.trace_id_low, body.span_id, body.trace_flags};
  span.parent_span_id = body.parent_span_id;
  span.parent_is_remote = (body.flags & kParentRemote) != 0;
  span.start_ns = body.start_ns;
  span.end_ns = body.end_ns;
  span.status = decode_status(body.flags);
  span.num_dropped_attributes = body.num_dropped_attributes;
  span.num_dropped_events = body.num_dropped_events;
  span.num_dropped_links = body.num_dropped_links;
  span.is_cut = (body.flags & kTextCut) != 0;
  std::uint32_t num_found = 0;
  for_each_entry(used_payload(body), [&](const Entry& entry) { return decode_entry(span, entry); });
  for_each_entry(spilled, [&](const Entry& entry) {
    ++num_found;
    return decode_entry(span, entry);
  });
  if (num_found < body.num_spilled) span.num_dropped_attributes += body.num_spilled - num_found;
  return span;
}

void mark_truncated(SpanData& span, std::int64_t time_ns, const std::string& reason) {
  put_stored(span.attributes, "nemo.span.truncated", true);
  SpanEvent event;
  event.name = "nemo.span.truncated";
  event.time_ns = time_ns;
  event.attributes.emplace_back("nemo.span.truncated.reason", reason);
  span.events.push_back(std::move(event));
}

std::string type_name(const std::exception& exception) {
  const char* mangled = typeid(exception).name();
  int status = 0;
  char* demangled = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  std::string name = status == 0 && demangled != nullptr ? demangled : mangled;
  std::free(demangled);
  return name;
}

std::string stack_trace() {
  constexpr int kMaxFrames = 24;
  void* frames[kMaxFrames];
  const int num_frames = backtrace(frames, kMaxFrames);
  char** symbols = backtrace_symbols(frames, num_frames);
  std::string text;
  for (int i = 1; symbols != nullptr && i < num_frames; ++i) text += std::string(symbols[i]) + "\n";
  std::free(symbols);
  return text;
}

}  // namespace pharos::lens::internal
