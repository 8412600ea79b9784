#include "pharos/lens/record/payload.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "pharos/lens/record/entry.h"

namespace pharos::lens {
namespace internal {
namespace {

constexpr std::string_view kCutMark = "…";
constexpr std::string_view kRedacted = "[REDACTED]";

char to_lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

template <typename Count>
void count_up(Count& count) {
  if (count < std::numeric_limits<Count>::max()) ++count;
}

/// Room for one more entry, its header and key written; returns where its value goes, null if there is no room.
std::byte* append_entry(const SpanPayload& payload, EntryKind kind, std::string_view key, std::size_t value_bytes) {
  if (key.size() > 255 || value_bytes > std::numeric_limits<std::uint16_t>::max()) return nullptr;
  RecordBody& body = payload.body;
  const EntryHeader header{kind, static_cast<std::uint8_t>(key.size()), static_cast<std::uint16_t>(value_bytes)};
  const std::size_t size_bytes = sizeof header + key.size() + value_bytes;
  std::byte* position = body.payload + body.payload_bytes;
  // What follows a spilled entry is spilled too: order says which attribute is the oldest.
  if (payload.spill.empty() && size_bytes <= kPayloadBytes - body.payload_bytes) {
    body.payload_bytes = static_cast<std::uint16_t>(body.payload_bytes + size_bytes);
  } else {
    const std::size_t offset = payload.spill.size();
    if (offset + size_bytes > payload.spill_capacity_bytes) return nullptr;
    payload.spill.resize(offset + size_bytes);
    position = payload.spill.data() + offset;
    count_up(body.num_spilled);
  }
  std::memcpy(position, &header, sizeof header);
  std::memcpy(position + sizeof header, key.data(), key.size());
  return position + sizeof header + key.size();
}

/// Removes the first entry that `is_meant` accepts.
template <typename IsMeant>
bool erase_entry(const SpanPayload& payload, IsMeant&& is_meant) {
  RecordBody& body = payload.body;
  bool is_found = false;
  for_each_entry(used_payload(body), [&](const Entry& entry) {
    if (!is_meant(entry)) return true;
    std::byte* position = body.payload + entry.offset;
    std::memmove(position, position + entry.size_bytes, body.payload_bytes - entry.offset - entry.size_bytes);
    body.payload_bytes = static_cast<std::uint16_t>(body.payload_bytes - entry.size_bytes);
    is_found = true;
    return false;
  });
  if (is_found || payload.spill.empty()) return is_found;
  for_each_entry(payload.spill, [&](const Entry& entry) {
    if (!is_meant(entry)) return true;
    const auto position = payload.spill.begin() + static_cast<std::ptrdiff_t>(entry.offset);
    payload.spill.erase(position, position + static_cast<std::ptrdiff_t>(entry.size_bytes));
    --body.num_spilled;
    is_found = true;
    return false;
  });
  return is_found;
}

/// The first `limit` characters of UTF-8 text.
std::string_view first_characters(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t num_characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && num_characters++ == limit) return text.substr(0, i);
  }
  return text;
}

/// `text` as far as it fits into `limit` bytes, with a mark behind it when it does not.
struct BoundedText {
  std::string_view text;
  bool is_cut = false;

  BoundedText(std::string_view whole, std::size_t limit) : text(whole), is_cut(whole.size() > limit) {
    if (!is_cut) return;
    std::size_t length = limit - kCutMark.size();
    while (length > 0 && (static_cast<unsigned char>(whole[length]) & 0xc0) == 0x80) --length;
    text = whole.substr(0, length);
  }
  std::size_t size_bytes() const { return text.size() + (is_cut ? kCutMark.size() : 0); }
  void write(std::byte* position) const {
    if (!text.empty()) std::memcpy(position, text.data(), text.size());
    if (is_cut) std::memcpy(position + text.size(), kCutMark.data(), kCutMark.size());
  }
};

/// A value as it will be stored.
class PreparedValue {
 public:
  PreparedValue(const AttributeValue& value, bool redacts, std::size_t text_characters)
      : value_(value),
        redacts_(redacts),
        text_characters_(text_characters),
        text_(prepare(value_text()), kMaxValueBytes) {}

  EntryKind kind() const {
    constexpr std::array kKinds = {EntryKind::kText,    EntryKind::kBool,  EntryKind::kInteger,
                                   EntryKind::kDouble,  EntryKind::kText,  EntryKind::kIntegers,
                                   EntryKind::kDoubles, EntryKind::kTexts, EntryKind::kBools};
    return kKinds[static_cast<std::size_t>(value_.type())];
  }
  bool is_cut() const { return text_.is_cut; }

  std::size_t size_bytes() const {
    switch (value_.type()) {
      case AttributeValue::Type::kNone:
        return 0;
      case AttributeValue::Type::kBool:
        return 1;
      case AttributeValue::Type::kInteger:
      case AttributeValue::Type::kDouble:
        return 8;
      case AttributeValue::Type::kText:
        return text_.size_bytes();
      case AttributeValue::Type::kIntegers:
      case AttributeValue::Type::kDoubles:
        return 8 * value_.size();
      case AttributeValue::Type::kBools:
        return value_.size();
      case AttributeValue::Type::kTexts:
        break;
    }
    std::size_t size_bytes = 0;
    for (std::size_t i = 0; i < value_.size(); ++i) size_bytes += 2 + prepare(value_.text_at(i)).size();
    return size_bytes;
  }

  /// Only if size_bytes() is at most kMaxValueBytes.
  void write(std::byte* position) const {
    switch (value_.type()) {
      case AttributeValue::Type::kNone:
        return;
      case AttributeValue::Type::kBool:
        *position = std::byte{value_.as_bool()};
        return;
      case AttributeValue::Type::kInteger:
      case AttributeValue::Type::kDouble: {
        const std::int64_t bits = value_.as_integer();
        std::memcpy(position, &bits, sizeof bits);
        return;
      }
      case AttributeValue::Type::kText:
        return text_.write(position);
      case AttributeValue::Type::kIntegers:
      case AttributeValue::Type::kDoubles:
        if (value_.size() != 0) std::memcpy(position, value_.as_integers().data(), 8 * value_.size());
        return;
      case AttributeValue::Type::kBools:
        for (std::size_t i = 0; i < value_.size(); ++i) position[i] = std::byte{value_.bool_at(i)};
        return;
      case AttributeValue::Type::kTexts:
        break;
    }
    for (std::size_t i = 0; i < value_.size(); ++i) {
      const std::string_view text = prepare(value_.text_at(i));
      const auto length = static_cast<std::uint16_t>(text.size());
      std::memcpy(position, &length, sizeof length);
      std::memcpy(position + sizeof length, text.data(), text.size());
      position += sizeof length + text.size();
    }
  }

 private:
  std::string_view value_text() const {
    return value_.type() == AttributeValue::Type::kText ? value_.as_text() : std::string_view();
  }
  std::string_view prepare(std::string_view text) const {
    return redacts_ ? kRedacted : first_characters(text, text_characters_);
  }

  const AttributeValue& value_;
  bool redacts_;
  std::size_t text_characters_;
  BoundedText text_;
};

/// The value of an event entry, growing.
class EventBytes {
 public:
  template <typename T>
  void put(T value) {
    append(&value, sizeof value);
  }
  void put_text(std::string_view text) {
    put(static_cast<std::uint16_t>(text.size()));
    append(text.data(), text.size());
  }
  void append(const void* bytes, std::size_t num_bytes) {
    const auto* first = static_cast<const std::byte*>(bytes);
    bytes_.insert(bytes_.end(), first, first + num_bytes);
  }
  std::byte* grow(std::size_t num_bytes) {
    bytes_.resize(bytes_.size() + num_bytes);
    return bytes_.data() + bytes_.size() - num_bytes;
  }
  std::size_t size() const { return bytes_.size(); }
  const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

bool has_room_for_event(const SpanPayload& payload) {
  std::uint32_t num_events = 0;
  const auto count = [&num_events](const Entry& entry) {
    num_events += entry.header.kind == EntryKind::kEvent || entry.header.kind == EntryKind::kException;
    return true;
  };
  for_each_entry(used_payload(payload.body), count);
  for_each_entry(payload.spill, count);
  return num_events < payload.limits.events;
}

void append_event_entry(const SpanPayload& payload, EntryKind kind, const EventBytes& bytes) {
  std::byte* position = has_room_for_event(payload) ? append_entry(payload, kind, "", bytes.size()) : nullptr;
  if (position == nullptr) return count_up(payload.body.num_dropped_events);
  std::memcpy(position, bytes.data(), bytes.size());
}

/// False when the attribute has no room in an event.
bool append_event_attribute(EventBytes& bytes, const Attribute& attribute, std::size_t text_characters) {
  const PreparedValue value(attribute.value, is_redacted_key(attribute.key), text_characters);
  const std::size_t value_bytes = value.size_bytes();
  const std::size_t size_bytes = sizeof(EntryHeader) + attribute.key.size() + value_bytes;
  if (attribute.key.size() > 255 || value_bytes > kMaxValueBytes || bytes.size() + size_bytes > 3 * kMaxValueBytes) {
    return false;
  }
  bytes.put(EntryHeader{value.kind(), static_cast<std::uint8_t>(attribute.key.size()),
                        static_cast<std::uint16_t>(value_bytes)});
  bytes.append(attribute.key.data(), attribute.key.size());
  value.write(bytes.grow(value_bytes));
  return true;
}

}  // namespace

bool is_same_key(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return to_lower(a) == to_lower(b); });
}

bool is_redacted_key(std::string_view key) {
  switch (key.size()) {
    case 3:
      return is_same_key(key, "key");
    case 4:
      return is_same_key(key, "text");
    case 5:
      return is_same_key(key, "token");
    case 6:
      return is_same_key(key, "prompt") || is_same_key(key, "secret");
    case 8:
      return is_same_key(key, "password");
    case 10:
      return is_same_key(key, "input_text");
    case 11:
      return is_same_key(key, "output_text");
    default:
      return false;
  }
}

/// The first and the last kBytes of a key that has between kBytes and twice as many.
template <std::size_t kBytes>
static void copy_ends(std::byte* position, std::string_view key) {
  std::memcpy(position, key.data(), kBytes);
  std::memcpy(position + key.size() - kBytes, key.data() + key.size() - kBytes, kBytes);
}

/// A call of memcpy costs more than the bytes of most keys.
static void copy_key(std::byte* position, std::string_view key) {
  if (key.size() >= 16 && key.size() <= 32) return copy_ends<16>(position, key);
  if (key.size() >= 8 && key.size() < 16) return copy_ends<8>(position, key);
  std::memcpy(position, key.data(), key.size());
}

/// The common case without the general machinery: a number or a flag that fits into the record. False: not that.
static bool append_scalar(const SpanPayload& payload, std::string_view key, const AttributeValue& value) {
  using Type = AttributeValue::Type;
  RecordBody& body = payload.body;
  const Type type = value.type();
  if (type != Type::kInteger && type != Type::kDouble && type != Type::kBool) return false;
  const std::size_t value_bytes = type == Type::kBool ? 1 : 8;
  const std::size_t size_bytes = sizeof(EntryHeader) + key.size() + value_bytes;
  if (key.size() > 255 || !payload.spill.empty() || size_bytes > kPayloadBytes - body.payload_bytes) return false;
  const EntryKind kind = type == Type::kInteger  ? EntryKind::kInteger
                         : type == Type::kDouble ? EntryKind::kDouble
                                                 : EntryKind::kBool;
  const EntryHeader header{kind, static_cast<std::uint8_t>(key.size()), static_cast<std::uint16_t>(value_bytes)};
  std::byte* const position = body.payload + body.payload_bytes;
  std::memcpy(position, &header, sizeof header);
  copy_key(position + sizeof header, key);
  const std::int64_t bits = value.as_integer();  // of a flag: 0 or 1 in the first byte
  if (type == Type::kBool) {
    std::memcpy(position + sizeof header + key.size(), &bits, 1);
  } else {
    std::memcpy(position + sizeof header + key.size(), &bits, sizeof bits);
  }
  body.payload_bytes = static_cast<std::uint16_t>(body.payload_bytes + size_bytes);
  ++body.num_attributes;
  return true;
}

void append_attribute(const SpanPayload& payload, std::string_view key, const AttributeValue& value, bool redacts) {
  if (key.empty() || value.type() == AttributeValue::Type::kNone) return;
  RecordBody& body = payload.body;
  if (body.num_attributes >= payload.limits.span_attributes) {
    count_up(body.num_dropped_attributes);
    if (!erase_entry(payload, [](const Entry& entry) { return is_attribute(entry.header.kind); })) return;
    --body.num_attributes;
  }
  if (append_scalar(payload, key, value)) return;
  const PreparedValue prepared(value, redacts, payload.limits.span_text_characters);
  const std::size_t value_bytes = prepared.size_bytes();
  std::byte* position =
      value_bytes <= kMaxValueBytes ? append_entry(payload, prepared.kind(), key, value_bytes) : nullptr;
  if (position == nullptr) return count_up(body.num_dropped_attributes);
  prepared.write(position);
  ++body.num_attributes;
  if (prepared.is_cut()) body.flags |= kTextCut;
}

void put_attribute(const SpanPayload& payload, std::string_view key, const AttributeValue& value, bool redacts) {
  if (key.empty() || value.type() == AttributeValue::Type::kNone) return;
  const auto is_meant = [key](const Entry& entry) { return entry.key == key && is_attribute(entry.header.kind); };
  if (erase_entry(payload, is_meant)) --payload.body.num_attributes;
  append_attribute(payload, key, value, redacts);
}

void put_error(const SpanPayload& payload, std::string_view description) {
  RecordBody& body = payload.body;
  if ((body.flags & kIsOk) != 0) return;
  body.flags |= kIsError;
  erase_entry(payload, [](const Entry& entry) { return entry.header.kind == EntryKind::kStatusDescription; });
  const BoundedText text(description, kMaxValueBytes);
  std::byte* position = append_entry(payload, EntryKind::kStatusDescription, "", text.size_bytes());
  if (position == nullptr) return count_up(body.num_dropped_attributes);
  text.write(position);
  if (text.is_cut) body.flags |= kTextCut;
}

void put_ok(const SpanPayload& payload) {
  erase_entry(payload, [](const Entry& entry) { return entry.header.kind == EntryKind::kStatusDescription; });
  payload.body.flags = static_cast<std::uint8_t>((payload.body.flags & ~kIsError) | kIsOk);
}

void append_exception(const SpanPayload& payload, std::int64_t time_ns, const ExceptionText& text) {
  const BoundedText message(first_characters(text.message, payload.limits.event_text_characters), kMaxValueBytes);
  EventBytes bytes;
  bytes.put(time_ns);
  bytes.put_text(text.type.substr(0, 255));
  bytes.put(static_cast<std::uint16_t>(message.size_bytes()));
  message.write(bytes.grow(message.size_bytes()));
  const std::string_view trace = first_characters(text.stacktrace, payload.limits.event_text_characters);
  bytes.append(trace.data(), std::min(trace.size(), kMaxValueBytes));
  append_event_entry(payload, EntryKind::kException, bytes);
  if (message.is_cut) payload.body.flags |= kTextCut;
}

void append_event(const SpanPayload& payload, std::int64_t time_ns, std::string_view name,
                  std::span<const Attribute> attributes) {
  std::uint16_t num_dropped = 0;
  std::uint32_t num_attributes = 0;
  EventBytes entries;
  for (const Attribute& attribute : attributes) {
    if (attribute.key.empty() || attribute.value.type() == AttributeValue::Type::kNone) continue;
    const bool fits = num_attributes < payload.limits.event_attributes &&
                      append_event_attribute(entries, attribute, payload.limits.event_text_characters);
    if (fits) {
      ++num_attributes;
    } else {
      count_up(num_dropped);
    }
  }
  EventBytes bytes;
  bytes.put(time_ns);
  bytes.put(num_dropped);
  bytes.put_text(name.substr(0, 1024));
  bytes.append(entries.data(), entries.size());
  append_event_entry(payload, EntryKind::kEvent, bytes);
}

void append_link(const SpanPayload& payload, const SpanContext& link) {
  std::uint32_t num_links = 0;
  const auto count = [&num_links](const Entry& entry) {
    num_links += entry.header.kind == EntryKind::kLink;
    return true;
  };
  for_each_entry(used_payload(payload.body), count);
  for_each_entry(payload.spill, count);
  constexpr std::size_t kLinkBytes = 26;
  std::byte* position =
      num_links < payload.limits.links ? append_entry(payload, EntryKind::kLink, "", kLinkBytes) : nullptr;
  if (position == nullptr) return count_up(payload.body.num_dropped_links);
  const std::uint64_t words[3] = {link.trace_id_high, link.trace_id_low, link.span_id};
  std::memcpy(position, words, sizeof words);
  position[24] = std::byte{link.trace_flags};
  position[25] = std::byte{link.is_remote};
}

void append_tracestate(const SpanPayload& payload, std::string_view tracestate) {
  std::byte* position = append_entry(payload, EntryKind::kTraceState, "", tracestate.size());
  if (position != nullptr) std::memcpy(position, tracestate.data(), tracestate.size());
}

}  // namespace internal

const std::vector<std::string>& default_redact_keys() {
  static const auto* const keys =
      new std::vector<std::string>{"prompt", "input_text", "output_text", "text", "password", "token", "secret", "key"};
  return *keys;
}

AttributeValue redact_value(std::string_view key, AttributeValue value, const std::vector<std::string>& redact_keys) {
  if (value.type() != AttributeValue::Type::kText) return value;
  const bool is_secret = std::any_of(redact_keys.begin(), redact_keys.end(), [key](const std::string& redacted) {
    return internal::is_same_key(key, redacted);
  });
  return is_secret ? AttributeValue(internal::kRedacted) : value;
}

}  // namespace pharos::lens
