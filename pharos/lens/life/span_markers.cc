#include "pharos/lens/life/span_markers.h"

#include "pharos/lens/record/names.h"

namespace pharos::lens {
namespace {

thread_local std::uint32_t num_open = 0;

}  // namespace

constinit std::atomic<SpanMarkers*> internal::span_markers{nullptr};

void show_spans(SpanMarkers* markers) {
  if (markers == nullptr) internal::pop_markers(1);
  internal::span_markers.store(markers, std::memory_order_release);
}

std::uint32_t internal::push_marker(NameId name) {
  SpanMarkers* markers = span_markers.load(std::memory_order_acquire);
  if (markers == nullptr) return 0;
  markers->push(name_text(name).c_str());
  return ++num_open;
}

void internal::pop_markers(std::uint32_t depth) {
  SpanMarkers* markers = span_markers.load(std::memory_order_acquire);
  for (; num_open >= depth; --num_open) {
    if (markers != nullptr) markers->pop();
  }
}

}  // namespace pharos::lens
