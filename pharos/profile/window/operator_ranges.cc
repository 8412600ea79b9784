#include "pharos/profile/window/operator_ranges.h"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/util.h>

#include <atomic>
#include <memory>
#include <string>

namespace pharos::profile {
namespace {

/// The callbacks of libtorch take no argument of their own.
std::atomic<lens::SpanMarkers*> shown_in{nullptr};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  std::string text = function.name();
  if (function.seqNr() >= 0) text += ", seq = " + std::to_string(function.seqNr());
  if (function.needsInputs())
    text += ", sizes = " + torch::profiler::impl::shapesToStr(torch::profiler::impl::inputSizes(function, true));
  shown_in.load(std::memory_order_acquire)->push(text.c_str());
  return nullptr;
}

void leave(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  shown_in.load(std::memory_order_acquire)->pop();
}

}  // namespace

OperatorRanges::OperatorRanges(lens::SpanMarkers& ranges, bool with_shapes) {
  shown_in.store(&ranges, std::memory_order_release);
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(enter, leave)
          .needsInputs(with_shapes)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

OperatorRanges::~OperatorRanges() { at::removeCallback(handle_); }

}  // namespace pharos::profile
