// Which rectangles of which logical tensors a rank's values are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "pharos/checkpoint/parts/contents.h"
#include "pharos/comm/mesh.h"

namespace pharos::checkpoint {

/// A rectangle of a piece, not empty.
struct Part {
  const tensor::Piece* piece;
  std::vector<std::int64_t> offset;  ///< in the piece
  at::Tensor values;                 ///< view of Held::values, detached, of the rectangle's shape
};

struct Parts {
  std::vector<Part> parts;
  std::vector<at::Tensor> padding;  ///< views of the values that belong to no piece: zero, and not stored
};

/// The parts of held.values (defined) on `rank`. InternalError when their shape or range does not fit the parameter.
Parts parts_of(const Held& held, const comm::Mesh& mesh, std::int64_t rank);

/// Whether `rank` writes its parts of `piece`: of the ranks that hold the same values, the first one does.
bool is_writer(const tensor::Piece& piece, bool is_fragment, const comm::Mesh& mesh, std::int64_t rank);

}  // namespace pharos::checkpoint
