// One span as data, as read from a ring.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/lens/data/resource.h"
#include "pharos/lens/data/stored_value.h"
#include "pharos/lens/span.h"

namespace pharos::lens {

enum class StatusCode : std::uint8_t { kUnset = 0, kOk = 1, kError = 2 };

struct SpanEvent {
  std::string name;
  std::int64_t time_ns = 0;  ///< CLOCK_MONOTONIC
  StoredAttributes attributes;
  std::uint32_t num_dropped_attributes = 0;
};

/// One span as read from a ring. Times are CLOCK_MONOTONIC; Resource converts them.
struct SpanData {
  std::string name;
  Group group = Group::kJob;
  bool is_ungated = false;  ///< made by span_cm: `group` means nothing
  Scope scope = Scope::kHelpers;
  SpanContext context;
  std::uint64_t parent_span_id = 0;
  bool parent_is_remote = false;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;         ///< 0: still open (only when read from the ring of a process that died)
  std::uint32_t thread_index = 0;  ///< which of the process's recording threads
  StatusCode status = StatusCode::kUnset;
  std::string status_description;
  StoredAttributes attributes;
  std::vector<SpanEvent> events;
  std::vector<SpanContext> links;
  std::uint32_t num_dropped_attributes = 0;
  std::uint32_t num_dropped_events = 0;
  std::uint32_t num_dropped_links = 0;
  std::string tracestate;  ///< W3C, of the remote context the span descends from; empty: none
  bool is_cut = false;     ///< a text did not fit and was cut
};

/// What was counted between two moments (record_counters). Times are CLOCK_MONOTONIC.
struct CounterEvent {
  std::string name;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::uint32_t thread_index = 0;
  StoredAttributes attributes;
};

}  // namespace pharos::lens
