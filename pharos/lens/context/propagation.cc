#include "pharos/lens/context/propagation.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/lens/context/trim.h"
#include "pharos/lens/record/recorder.h"

namespace pharos::lens {

using internal::trimmed;

namespace {

constexpr std::string_view kTraceparent = "traceparent";
constexpr std::string_view kTracestate = "tracestate";
constexpr std::string_view kBaggage = "baggage";

constexpr std::size_t kVersionBytes = 2;
constexpr std::size_t kTraceparentBytes = 55;

std::string_view find_header(const Carrier& carrier, std::string_view key) {
  const auto found = carrier.find(std::string(key));
  return found != carrier.end() ? std::string_view(found->second) : std::string_view();
}

/// Value of a lower-case hexadecimal digit, or -1.
int hex_digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  return -1;
}

std::optional<std::uint64_t> parse_hex(std::string_view text) {
  std::uint64_t value = 0;
  for (const char letter : text) {
    const int digit = hex_digit(letter);
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<std::uint64_t>(digit);
  }
  return value;
}

void put_big_endian(std::uint64_t value, std::byte* position) {
  for (int shift = 56; shift >= 0; shift -= 8) *position++ = static_cast<std::byte>(value >> shift & 0xff);
}

std::uint64_t get_big_endian(const std::byte* position) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value = value << 8 | static_cast<std::uint64_t>(position[i]);
  return value;
}

SpanContext checked(SpanContext context) {
  const bool is_valid = (context.trace_id_high | context.trace_id_low) != 0 && context.span_id != 0;
  return is_valid ? context : SpanContext{};
}

std::string dumped(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

/// SHA-256 of run id and step; the length in front keeps different pairs apart.
std::array<std::byte, 32> hash(std::string_view run_id, std::int64_t step) {
  const std::string text =
      "pharos trace " + std::to_string(run_id.size()) + " " + std::string(run_id) + " " + std::to_string(step);
  std::array<std::byte, 32> digest{};
  unsigned int num_bytes = 0;
  if (EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), &num_bytes, EVP_sha256(),
                 nullptr) != 1) {
    throw base::InternalError("libcrypto computes no SHA-256");
  }
  return digest;
}

struct CarrierTable {
  std::mutex mutex;
  std::map<std::string, Carrier, std::less<>> carriers;
};

CarrierTable& pp_carriers() {
  static auto* const table = new CarrierTable;
  return *table;
}

RemoteContext current_remote_context() {
  RemoteContext current;
  current.context = current_context();
  if (!is_telemetry_active()) return current;
  internal::ThreadState* state = internal::thread_state();
  if (state == nullptr || state->stack.carried() == nullptr) return current;
  current.tracestate = state->stack.carried()->tracestate;
  current.baggage = state->stack.carried()->baggage;
  return current;
}

}  // namespace

std::string format_traceparent(const SpanContext& context) {
  char text[kTraceparentBytes + 1];
  std::snprintf(text, sizeof text, "00-%016llx%016llx-%016llx-%02x",
                static_cast<unsigned long long>(context.trace_id_high),
                static_cast<unsigned long long>(context.trace_id_low), static_cast<unsigned long long>(context.span_id),
                static_cast<unsigned>(context.trace_flags));
  return text;
}

SpanContext parse_traceparent(std::string_view text) {
  text = trimmed(text);
  if (text.size() < kTraceparentBytes || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, kVersionBytes);
  const std::string_view rest = text.substr(kTraceparentBytes);
  if (!parse_hex(version) || version == "ff") return {};
  if (!rest.empty() && (version == "00" || rest.front() != '-')) return {};
  const auto high = parse_hex(text.substr(3, 16));
  const auto low = parse_hex(text.substr(19, 16));
  const auto span_id = parse_hex(text.substr(36, 16));
  const auto flags = parse_hex(text.substr(53, 2));
  if (!high || !low || !span_id || !flags) return {};
  return checked({*high, *low, *span_id, static_cast<std::uint8_t>(*flags), true});
}

void inject_context(Carrier& carrier) {
  const RemoteContext current = current_remote_context();
  if (current.context) {
    carrier[std::string(kTraceparent)] = format_traceparent(current.context);
    if (!current.tracestate.empty()) carrier[std::string(kTracestate)] = current.tracestate;
  }
  const std::string baggage = format_baggage(current.baggage);
  if (!baggage.empty()) carrier[std::string(kBaggage)] = baggage;
}

RemoteContext extract_context(const Carrier& carrier) {
  RemoteContext remote;
  remote.context = parse_traceparent(find_header(carrier, kTraceparent));
  if (remote.context) remote.tracestate = parse_tracestate(find_header(carrier, kTracestate));
  remote.baggage = parse_baggage(find_header(carrier, kBaggage));
  return remote;
}

ManagedSpan create_linked_span(std::string_view name, const RemoteContext& remote,
                               std::initializer_list<Attribute> attributes) {
  StartOptions options;
  options.make_current = false;
  options.is_ungated = true;
  options.link = remote.context;
  return start_span(Group::kCommunication, name, options, attributes);
}

ManagedSpan create_linked_span(std::string_view name, const Carrier& carrier,
                               std::initializer_list<Attribute> attributes) {
  return create_linked_span(name, extract_context(carrier), attributes);
}

SpanContext derive_trace_context(std::string_view run_id, std::int64_t step) {
  const std::array<std::byte, 32> digest = hash(run_id, step);
  SpanContext context{get_big_endian(digest.data()), get_big_endian(digest.data() + 8),
                      get_big_endian(digest.data() + 16)};
  context.trace_id_low |= context.trace_id_low == 0;
  context.span_id |= context.span_id == 0;
  context.is_remote = true;
  return context;
}

std::string encode_trace_broadcast(const Carrier& carrier) {
  std::string text;
  const auto put = [&text](const std::string& key, const std::string& value) {
    text.append(text.empty() ? "" : ", ").append(dumped(key)).append(": ").append(dumped(value));
  };
  // The order in which nemo-lens's propagators write; then whatever else there is.
  static constexpr std::string_view kOrder[] = {kTraceparent, kTracestate, kBaggage};
  for (const std::string_view key : kOrder) {
    const auto found = carrier.find(std::string(key));
    if (found != carrier.end()) put(found->first, found->second);
  }
  for (const auto& [key, value] : carrier) {
    if (std::find(std::begin(kOrder), std::end(kOrder), key) == std::end(kOrder)) put(key, value);
  }
  return "{" + text + "}";
}

std::optional<Carrier> decode_trace_broadcast(std::string_view bytes) {
  const nlohmann::json document = nlohmann::json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return std::nullopt;
  Carrier carrier;
  for (const auto& [key, value] : document.items()) {
    if (value.is_string()) carrier[key] = value.get<std::string>();
  }
  return carrier;
}

namespace {
constexpr char kFrameMagic[4] = {'P', 'H', 'T', 'C'};
constexpr std::byte kFrameVersion{1};
constexpr std::size_t kFrameUsedBytes = 32;
}  // namespace

TraceFrame encode_trace_frame(const SpanContext& context) {
  TraceFrame frame{};
  std::memcpy(frame.data(), kFrameMagic, sizeof kFrameMagic);
  frame[4] = kFrameVersion;
  if (!context) return frame;
  frame[5] = std::byte{1};
  frame[6] = std::byte{context.trace_flags};
  put_big_endian(context.trace_id_high, frame.data() + 8);
  put_big_endian(context.trace_id_low, frame.data() + 16);
  put_big_endian(context.span_id, frame.data() + 24);
  return frame;
}

std::optional<SpanContext> decode_trace_frame(std::span<const std::byte> frame) {
  if (frame.size() != std::tuple_size_v<TraceFrame>) return std::nullopt;
  if (std::memcmp(frame.data(), kFrameMagic, sizeof kFrameMagic) != 0 || frame[4] != kFrameVersion) return std::nullopt;
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (!is_zero(frame[7]) || !std::all_of(frame.begin() + kFrameUsedBytes, frame.end(), is_zero)) return std::nullopt;
  if (is_zero(frame[5])) {
    return std::all_of(frame.begin() + 6, frame.end(), is_zero) ? std::optional(SpanContext{}) : std::nullopt;
  }
  const SpanContext context = checked({get_big_endian(frame.data() + 8), get_big_endian(frame.data() + 16),
                                       get_big_endian(frame.data() + 24), static_cast<std::uint8_t>(frame[6]), true});
  if (frame[5] != std::byte{1} || !context) return std::nullopt;
  return context;
}

namespace {

Carrier broadcast_frame(bool is_source, int src_rank, const BroadcastBytes& broadcast) {
  TraceFrame frame = encode_trace_frame(is_source ? current_context() : SpanContext{});
  broadcast(frame, src_rank);
  const std::optional<SpanContext> context = decode_trace_frame(frame);
  if (!context || !*context) return {};
  return {{std::string(kTraceparent), format_traceparent(*context)}};
}

Carrier broadcast_json(bool is_source, int src_rank, const BroadcastBytes& broadcast) {
  Carrier carrier;
  if (is_source) inject_context(carrier);
  std::string text = is_source ? encode_trace_broadcast(carrier) : "";
  auto length = static_cast<std::int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&length, 1)), src_rank);
  // More than any carrier within the limits of section 7.1 has: the other end speaks another language.
  constexpr std::int64_t kMaxBytes = 1 << 20;
  if (length < 0 || length > kMaxBytes) {
    throw base::InternalError("the trace broadcast of rank " + std::to_string(src_rank) + " has a length of " +
                              std::to_string(length) + " bytes");
  }
  if (length == 0) return {};
  text.resize(static_cast<std::size_t>(length));
  broadcast(std::as_writable_bytes(std::span(text)), src_rank);
  return decode_trace_broadcast(text).value_or(Carrier{});
}

}  // namespace

Carrier broadcast_trace_context(int rank, int src_rank, const BroadcastBytes& broadcast, TraceBroadcast form) {
  const bool is_source = rank == src_rank;
  return form == TraceBroadcast::kFrame ? broadcast_frame(is_source, src_rank, broadcast)
                                        : broadcast_json(is_source, src_rank, broadcast);
}

void set_pp_trace_carrier(Carrier carrier, std::string_view key) {
  CarrierTable& table = pp_carriers();
  const std::lock_guard lock(table.mutex);
  table.carriers.insert_or_assign(std::string(key), std::move(carrier));
}

Carrier get_pp_trace_carrier(std::string_view key) {
  CarrierTable& table = pp_carriers();
  const std::lock_guard lock(table.mutex);
  const auto found = table.carriers.find(key);
  return found != table.carriers.end() ? found->second : Carrier{};
}

}  // namespace pharos::lens
