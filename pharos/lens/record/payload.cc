#include "pharos/lens/record/payload.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <typeinfo>

namespace pharos::lens::internal {
namespace {

struct EntryHeader {
  EntryKind kind;
  std::uint8_t key_bytes;
  std::uint16_t value_bytes;
};
static_assert(sizeof(EntryHeader) == 4);

constexpr std::string_view kCutMark = "…";

/// Room for a value after the header and key of one more entry; negative if even those do not fit.
std::ptrdiff_t room(const RecordBody& body, std::string_view key) {
  return static_cast<std::ptrdiff_t>(kPayloadBytes) - body.payload_bytes -
         static_cast<std::ptrdiff_t>(sizeof(EntryHeader) + key.size());
}

/// Appends an entry that is known to fit; returns where its value goes.
std::byte* append_entry(RecordBody& body, EntryKind kind, std::string_view key, std::size_t value_bytes) {
  const EntryHeader header{kind, static_cast<std::uint8_t>(key.size()), static_cast<std::uint16_t>(value_bytes)};
  std::byte* position = body.payload + body.payload_bytes;
  std::memcpy(position, &header, sizeof header);
  position += sizeof header;
  std::memcpy(position, key.data(), key.size());
  body.payload_bytes = static_cast<std::uint16_t>(body.payload_bytes + sizeof header + key.size() + value_bytes);
  return position + key.size();
}

void append_fixed(RecordBody& body, EntryKind kind, std::string_view key, const void* value, std::size_t value_bytes) {
  if (key.size() > 255 || room(body, key) < static_cast<std::ptrdiff_t>(value_bytes)) {
    ++body.num_dropped_attributes;
    return;
  }
  std::byte* position = append_entry(body, kind, key, value_bytes);
  if (value_bytes != 0) std::memcpy(position, value, value_bytes);
}

/// Bytes of `text` that fit into `limit` with a mark behind, ending between two characters.
std::size_t cut_position(std::string_view text, std::size_t limit) {
  std::size_t length = limit - kCutMark.size();
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
  return length;
}

void append_text(RecordBody& body, EntryKind kind, std::string_view key, std::string_view text) {
  const std::ptrdiff_t free = room(body, key);
  if (key.size() > 255 || free < static_cast<std::ptrdiff_t>(std::min<std::size_t>(text.size(), 16))) {
    ++body.num_dropped_attributes;
    return;
  }
  const std::size_t limit = std::min(static_cast<std::size_t>(free), kMaxTextBytes);
  if (text.size() <= limit) {
    std::byte* position = append_entry(body, kind, key, text.size());
    if (!text.empty()) std::memcpy(position, text.data(), text.size());
    return;
  }
  const std::size_t length = cut_position(text, limit);
  std::byte* position = append_entry(body, kind, key, length + kCutMark.size());
  std::memcpy(position, text.data(), length);
  std::memcpy(position + length, kCutMark.data(), kCutMark.size());
  body.flags |= kTextCut;
}

struct Entry {
  EntryHeader header;
  std::string_view key;
  std::string_view value;
  std::size_t offset;
  std::size_t size_bytes;
};

/// Calls `visit` for each whole entry until it returns false.
template <typename Visit>
void for_each_entry(const RecordBody& body, Visit&& visit) {
  const std::size_t end = std::min<std::size_t>(body.payload_bytes, kPayloadBytes);
  std::size_t offset = 0;
  while (offset + sizeof(EntryHeader) <= end) {
    Entry entry{};
    std::memcpy(&entry.header, body.payload + offset, sizeof entry.header);
    entry.offset = offset;
    entry.size_bytes = sizeof entry.header + entry.header.key_bytes + entry.header.value_bytes;
    if (offset + entry.size_bytes > end) return;
    const char* text = reinterpret_cast<const char*>(body.payload + offset + sizeof entry.header);
    entry.key = {text, entry.header.key_bytes};
    entry.value = {text + entry.header.key_bytes, entry.header.value_bytes};
    if (!visit(entry)) return;
    offset += entry.size_bytes;
  }
}

void erase_entry(RecordBody& body, EntryKind first_kind, EntryKind last_kind, std::string_view key) {
  for_each_entry(body, [&](const Entry& entry) {
    if (entry.header.kind < first_kind || entry.header.kind > last_kind || entry.key != key) return true;
    std::byte* position = body.payload + entry.offset;
    std::memmove(position, position + entry.size_bytes, body.payload_bytes - entry.offset - entry.size_bytes);
    body.payload_bytes = static_cast<std::uint16_t>(body.payload_bytes - entry.size_bytes);
    return false;
  });
}

template <typename T>
T read_value(std::string_view bytes, std::size_t offset = 0) {
  T value{};
  if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

StoredValue decode_value(const Entry& entry) {
  switch (entry.header.kind) {
    case EntryKind::kBool:
      return !entry.value.empty() && entry.value[0] != 0;
    case EntryKind::kInteger:
      return read_value<std::int64_t>(entry.value);
    case EntryKind::kDouble:
      return read_value<double>(entry.value);
    case EntryKind::kIntegers: {
      std::vector<std::int64_t> values(entry.value.size() / 8);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = read_value<std::int64_t>(entry.value, 8 * i);
      return values;
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
  SpanEvent event;
  event.name = "exception";
  event.time_ns = read_value<std::int64_t>(value);
  value.remove_prefix(std::min<std::size_t>(value.size(), 8));
  const std::size_t type_bytes = read_value<std::uint16_t>(value);
  value.remove_prefix(std::min<std::size_t>(value.size(), 2));
  event.attributes.emplace_back("exception.type", std::string(value.substr(0, type_bytes)));
  value.remove_prefix(std::min(value.size(), type_bytes));
  event.attributes.emplace_back("exception.message", std::string(value));
  event.attributes.emplace_back("exception.escaped", std::string("False"));
  return event;
}

}  // namespace

bool is_redacted_key(std::string_view key) {
  switch (key.size()) {
    case 3:
      return key == "key";
    case 4:
      return key == "text";
    case 5:
      return key == "token";
    case 6:
      return key == "prompt" || key == "secret";
    case 8:
      return key == "password";
    case 10:
      return key == "input_text";
    case 11:
      return key == "output_text";
    default:
      return false;
  }
}

void append_attribute(RecordBody& body, std::string_view key, const AttributeValue& value) {
  if (key.empty()) return;
  switch (value.type()) {
    case AttributeValue::Type::kNone:
      return;
    case AttributeValue::Type::kBool: {
      const bool flag = value.as_bool();
      return append_fixed(body, EntryKind::kBool, key, &flag, 1);
    }
    case AttributeValue::Type::kInteger: {
      const std::int64_t number = value.as_integer();
      return append_fixed(body, EntryKind::kInteger, key, &number, sizeof number);
    }
    case AttributeValue::Type::kDouble: {
      const double number = value.as_double();
      return append_fixed(body, EntryKind::kDouble, key, &number, sizeof number);
    }
    case AttributeValue::Type::kText:
      return append_text(body, EntryKind::kText, key, is_redacted_key(key) ? "[REDACTED]" : value.as_text());
    case AttributeValue::Type::kIntegers: {
      const std::span<const std::int64_t> numbers = value.as_integers();
      return append_fixed(body, EntryKind::kIntegers, key, numbers.data(), numbers.size_bytes());
    }
  }
}

void erase_attribute(RecordBody& body, std::string_view key) {
  erase_entry(body, EntryKind::kBool, EntryKind::kIntegers, key);
}

void put_error(RecordBody& body, std::string_view description) {
  body.flags |= kIsError;
  erase_entry(body, EntryKind::kStatusDescription, EntryKind::kStatusDescription, "");
  append_text(body, EntryKind::kStatusDescription, "", description);
}

void append_exception(RecordBody& body, std::int64_t time_ns, std::string_view type, std::string_view message) {
  constexpr std::size_t kFixedBytes = 10;
  type = type.substr(0, 80);
  const std::ptrdiff_t free = room(body, "") - static_cast<std::ptrdiff_t>(kFixedBytes + type.size());
  if (free < static_cast<std::ptrdiff_t>(kCutMark.size())) {
    ++body.num_dropped_attributes;
    return;
  }
  const std::size_t limit = std::min(static_cast<std::size_t>(free), kMaxTextBytes);
  const bool is_cut = message.size() > limit;
  const std::size_t length = is_cut ? cut_position(message, limit) : message.size();
  const std::string_view mark = is_cut ? kCutMark : "";
  std::byte* position = append_entry(body, EntryKind::kException, "", kFixedBytes + type.size() + length + mark.size());
  const auto put = [&position](const void* bytes, std::size_t num_bytes) {
    if (num_bytes != 0) std::memcpy(position, bytes, num_bytes);
    position += num_bytes;
  };
  const auto type_bytes = static_cast<std::uint16_t>(type.size());
  put(&time_ns, sizeof time_ns);
  put(&type_bytes, sizeof type_bytes);
  put(type.data(), type.size());
  put(message.data(), length);
  put(mark.data(), mark.size());
  if (is_cut) body.flags |= kTextCut;
}

void append_link(RecordBody& body, SpanContext link) {
  const std::uint64_t words[3] = {link.trace_id_high, link.trace_id_low, link.span_id};
  append_fixed(body, EntryKind::kLink, "", words, sizeof words);
}

SpanData decode(const RecordBody& body) {
  SpanData span;
  span.is_ungated = (body.flags & kUngated) != 0 || body.group >= kNumGroups;
  span.group = span.is_ungated ? Group::kJob : static_cast<Group>(body.group);
  span.scope = (body.flags & kScopeLens) != 0 ? Scope::kLens : Scope::kHelpers;
  span.context = {body.trace_id_high, body.trace_id_low, body.span_id};
  span.parent_span_id = body.parent_span_id;
  span.start_ns = body.start_ns;
  span.end_ns = body.end_ns;
  span.status = (body.flags & kIsError) != 0 ? StatusCode::kError : StatusCode::kUnset;
  span.num_dropped_attributes = body.num_dropped_attributes;
  span.is_cut = (body.flags & kTextCut) != 0;
  for_each_entry(body, [&span](const Entry& entry) {
    switch (entry.header.kind) {
      case EntryKind::kStatusDescription:
        span.status_description = std::string(entry.value);
        break;
      case EntryKind::kLink:
        span.links.push_back({read_value<std::uint64_t>(entry.value, 0), read_value<std::uint64_t>(entry.value, 8),
                              read_value<std::uint64_t>(entry.value, 16)});
        break;
      case EntryKind::kException:
        span.events.push_back(decode_exception(entry.value));
        break;
      case EntryKind::kBool:
      case EntryKind::kInteger:
      case EntryKind::kDouble:
      case EntryKind::kText:
      case EntryKind::kIntegers:
        put_stored(span.attributes, entry.key, decode_value(entry));
        break;
      default:
        return false;
    }
    return true;
  });
  return span;
}

void mark_truncated(SpanData& span, std::int64_t time_ns, const std::string& reason) {
  put_stored(span.attributes, "nemo.span.truncated", true);
  SpanEvent event{"nemo.span.truncated", time_ns, {}};
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

}  // namespace pharos::lens::internal
