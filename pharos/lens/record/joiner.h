// Puts spans together whose entries did not fit into one record.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "pharos/lens/record/payload.h"

namespace pharos::lens::internal {

/// Takes the records of one ring in their order. Continuations that are missing or torn cost the entries in them, which
/// are then counted as dropped attributes.
class RecordJoiner {
 public:
  /// The span that `body` completes, without name and thread; none after a continuation.
  std::optional<SpanData> add(const RecordBody& body) {
    if ((body.flags & kContinuation) != 0) {
      add_continuation(body);
      return std::nullopt;
    }
    const bool is_whole = span_id_ == body.span_id && num_continuations_ == body.num_continuations;
    if (!is_whole) bytes_.clear();
    SpanData span = decode(body, bytes_);
    reset(0);
    return span;
  }

 private:
  void add_continuation(const RecordBody& body) {
    if (body.num_continuations == 0) reset(body.span_id);
    if (body.span_id != span_id_ || body.num_continuations != num_continuations_) return reset(0);
    bytes_.insert(bytes_.end(), body.payload, body.payload + std::min<std::size_t>(body.payload_bytes, kPayloadBytes));
    ++num_continuations_;
  }
  void reset(std::uint64_t span_id) {
    span_id_ = span_id;
    num_continuations_ = 0;
    bytes_.clear();
  }

  std::uint64_t span_id_ = 0;
  std::uint32_t num_continuations_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace pharos::lens::internal
