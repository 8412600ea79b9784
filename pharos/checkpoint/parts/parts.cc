#include "pharos/checkpoint/parts/parts.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/checkpoint/parts/rectangle.h"

namespace pharos::checkpoint {
namespace {

using comm::MeshDim;

/// The part of `held.values` at `rectangle` of the local parameter.
at::Tensor view_of(const Held& held, const Rectangle& rectangle) {
  at::Tensor view = held.values.detach();
  const auto axes = static_cast<std::int64_t>(rectangle.begin.size());
  if (!held.is_fragment) {
    for (std::int64_t axis = 0; axis < axes; ++axis) {
      const auto i = static_cast<std::size_t>(axis);
      view = view.narrow(axis, rectangle.begin[i], rectangle.shape[i]);
    }
    return view;
  }
  // Strides of the parameter, laid over the one-dimensional values: exact, because the rectangle lies in their range.
  const auto sizes = held.parameter->data.sizes();
  std::vector<std::int64_t> strides(rectangle.begin.size());
  std::int64_t stride = view.stride(0), place = -held.first_element * stride;
  for (std::size_t axis = strides.size(); axis-- > 0;) {
    strides[axis] = stride;
    place += rectangle.begin[axis] * stride;
    stride *= sizes[axis];
  }
  return view.as_strided(rectangle.shape, strides, view.storage_offset() + place);
}

std::vector<Rectangle> held_rectangles(const Held& held) {
  const std::vector<std::int64_t> sizes = held.parameter->data.sizes().vec();
  if (held.is_fragment) {
    PHAROS_CHECK(held.values.dim() == 1, "a fragment of " + held.parameter->name + " has not one dimension");
    return rectangles_of_range(sizes, held.first_element, held.values.numel());
  }
  PHAROS_CHECK(held.values.sizes() == held.parameter->data.sizes(),
               held.kind + " " + held.parameter->name + " is not shaped like its parameter");
  return rectangles_of_range(sizes, 0, held.values.numel());
}

}  // namespace

Parts parts_of(const Held& held, const comm::Mesh& mesh, std::int64_t rank) {
  const tensor::Parameter& parameter = *held.parameter;
  const std::vector<Rectangle> rectangles = held_rectangles(held);
  const auto axis = static_cast<std::size_t>(parameter.axis);
  Parts result;
  std::int64_t start = 0;  // of the piece, on the axis of concatenation
  for (const tensor::Piece& piece : parameter.pieces) {
    const tensor::Slice slice = tensor::local_slice(piece, mesh, rank);
    Rectangle place{std::vector<std::int64_t>(slice.shape.size(), 0), slice.shape};
    place.begin[axis] = start;
    for (const Rectangle& rectangle : rectangles) {
      const auto common = intersection(rectangle, place);
      if (!common) continue;
      std::vector<std::int64_t> offset = slice.offset;
      for (std::size_t i = 0; i < offset.size(); ++i) offset[i] += common->begin[i] - place.begin[i];
      result.parts.push_back({&piece, std::move(offset), view_of(held, *common)});
    }
    start += slice.shape[axis];
    if (slice.padding_rows == 0) continue;
    PHAROS_CHECK(parameter.pieces.size() == 1 && axis == 0, piece.name + " has padding inside a fused parameter");
    place.begin[0] = start;
    place.shape[0] = slice.padding_rows;
    for (const Rectangle& rectangle : rectangles) {
      if (const auto common = intersection(rectangle, place)) result.padding.push_back(view_of(held, *common));
    }
  }
  return result;
}

bool is_writer(const tensor::Piece& piece, bool is_fragment, const comm::Mesh& mesh, std::int64_t rank) {
  const auto is_expert = [](const tensor::Split& split) {
    return split.dim == MeshDim::kExpertTensor || split.dim == MeshDim::kExpert || split.dim == MeshDim::kExpertData;
  };
  const bool expert = std::any_of(piece.splits.begin(), piece.splits.end(), is_expert);
  std::vector<MeshDim> dims =
      expert ? std::vector<MeshDim>{MeshDim::kExpertTensor, MeshDim::kExpert} : std::vector<MeshDim>{MeshDim::kTensor};
  // Over these dimensions whole values are copies, fragments are not.
  if (!is_fragment && expert) dims.push_back(MeshDim::kExpertData);
  if (!is_fragment && !expert) dims.insert(dims.end(), {MeshDim::kContext, MeshDim::kData});
  return std::all_of(dims.begin(), dims.end(), [&](MeshDim dim) {
    const auto split =
        std::find_if(piece.splits.begin(), piece.splits.end(), [&](const tensor::Split& s) { return s.dim == dim; });
    return mesh.coordinate(rank, dim) % (split == piece.splits.end() ? mesh.size(dim) : split->replicas) == 0;
  });
}

}  // namespace pharos::checkpoint
