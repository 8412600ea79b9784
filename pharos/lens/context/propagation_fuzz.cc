// Fuzz entry point of what comes from other processes: the W3C headers, one a line, and the two broadcast payloads.
// Nothing may leave the parsers but values; what was accepted must come back unchanged from its own text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "pharos/lens/context/propagation.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  namespace lens = pharos::lens;
  const std::string text(reinterpret_cast<const char*>(data), num_bytes);
  lens::Carrier carrier;
  const char* kKeys[] = {"traceparent", "tracestate", "baggage"};
  std::size_t start = 0;
  for (const char* key : kKeys) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    carrier[key] = text.substr(start, end - start);
    start = std::min(end + 1, text.size());
  }
  const lens::RemoteContext remote = lens::extract_context(carrier);
  if (remote.context) check(lens::parse_traceparent(lens::format_traceparent(remote.context)) == remote.context);
  check(lens::parse_tracestate(remote.tracestate) == remote.tracestate);
  const std::string baggage = lens::format_baggage(remote.baggage);
  check(baggage.size() <= 8192 && lens::format_baggage(lens::parse_baggage(baggage)).size() <= baggage.size());

  if (const auto decoded = lens::decode_trace_broadcast(text)) {
    check(lens::decode_trace_broadcast(lens::encode_trace_broadcast(*decoded)) == *decoded);
  }
  const auto frame = lens::decode_trace_frame(std::as_bytes(std::span(data, num_bytes)));
  if (frame && *frame) check(lens::decode_trace_frame(lens::encode_trace_frame(*frame)) == *frame);
  return 0;
}
