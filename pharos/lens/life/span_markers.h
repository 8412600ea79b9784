// Spans shown to a profiler while it looks: each becomes a range of the thread it is current in.
#pragma once

#include <atomic>
#include <cstdint>

#include "pharos/lens/span.h"

namespace pharos::lens {

/// Ranges of the calling thread, which nest. Called from any thread that has spans.
class SpanMarkers {
 public:
  virtual ~SpanMarkers() = default;
  virtual void push(const char* name) = 0;
  virtual void pop() = 0;
};

/// From here on every span that starts and becomes current in its thread pushes a range, and pops it when it ends in
/// that thread; a range that its span leaves open ends with the range around it. Null: no more, the calling thread's
/// open ranges are popped. `markers` must live as long as the process: other threads may be inside. Spans of groups
/// that are off, or without telemetry, are not shown. Costs one load a span while there are none.
void show_spans(SpanMarkers* markers);

namespace internal {

extern constinit std::atomic<SpanMarkers*> span_markers;

/// Opens a range; returns its depth in this thread, from 1.
std::uint32_t push_marker(NameId name);
/// Closes the range of that depth and those within it, as far as they are open.
void pop_markers(std::uint32_t depth);

}  // namespace internal
}  // namespace pharos::lens
