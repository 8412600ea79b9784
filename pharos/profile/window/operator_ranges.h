// A range around every operator of libtorch, forward and backward: what PyTorch's emit_nvtx shows.
#pragma once

#include <cstdint>

#include "pharos/lens/life/span_markers.h"

namespace pharos::profile {

/// Ranges while it lives: "aten::mm, seq = 12", with shapes "aten::mm, seq = 12, sizes = [[8, 16], [16, 4]]". `seq` is
/// autograd's number, the same for an operator and its backward. One at a time in a process.
class OperatorRanges {
 public:
  /// ranges: lives as long as the process.
  OperatorRanges(lens::SpanMarkers& ranges, bool with_shapes);
  ~OperatorRanges();
  OperatorRanges(const OperatorRanges&) = delete;
  OperatorRanges& operator=(const OperatorRanges&) = delete;

 private:
  std::uint64_t handle_;
};

}  // namespace pharos::profile
