#include "pharos/tensor/parameter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/tensor/random.h"

namespace pharos::tensor {
namespace {

/// Local length of piece `piece` along the parameter's concatenation axis, padding included.
std::int64_t local_length(const Slice& slice, int axis) {
  return slice.shape[axis] + (axis == 0 ? slice.padding_rows : 0);
}

}  // namespace

bool is_expert(const Parameter& parameter) {
  using comm::MeshDim;
  return std::any_of(parameter.pieces.begin(), parameter.pieces.end(), [](const Piece& piece) {
    return std::any_of(piece.splits.begin(), piece.splits.end(), [](const Split& split) {
      return split.dim == MeshDim::kExpert || split.dim == MeshDim::kExpertTensor;
    });
  });
}

const at::Tensor& value(const Parameter& parameter) {
  if (parameter.keeper != nullptr) parameter.keeper->before_use(parameter);
  return parameter.data;
}

Slice local_slice(const Piece& piece, const comm::Mesh& mesh, std::int64_t rank) {
  Slice slice{std::vector<std::int64_t>(piece.shape.size(), 0), piece.shape, 0};
  const bool padded = piece.padded_rows > 0;
  if (padded) slice.shape[0] = piece.padded_rows;
  for (const Split& split : piece.splits) {
    const std::int64_t parts = mesh.size(split.dim) / split.replicas;
    const std::int64_t part = mesh.coordinate(rank, split.dim) / split.replicas;
    std::int64_t& length = slice.shape[split.axis];
    PHAROS_CHECK(parts > 0 && length % parts == 0, piece.name + " axis " + std::to_string(split.axis) + " of length " +
                                                       std::to_string(length) + " does not divide into " +
                                                       std::to_string(parts) + " parts");
    length /= parts;
    slice.offset[split.axis] += part * length;
  }
  if (padded) {
    const std::int64_t rows = slice.shape[0];
    slice.shape[0] = std::clamp<std::int64_t>(piece.shape[0] - slice.offset[0], 0, rows);
    slice.padding_rows = rows - slice.shape[0];
  }
  return slice;
}

std::vector<std::int64_t> local_shape(const Parameter& parameter, const comm::Mesh& mesh, std::int64_t rank) {
  PHAROS_CHECK(!parameter.pieces.empty(), parameter.name + " has no piece");
  std::vector<std::int64_t> shape = local_slice(parameter.pieces.front(), mesh, rank).shape;
  shape[parameter.axis] = 0;
  for (const Piece& piece : parameter.pieces)
    shape[parameter.axis] += local_length(local_slice(piece, mesh, rank), parameter.axis);
  return shape;
}

at::Tensor piece_view(const Parameter& parameter, const at::Tensor& tensor, std::size_t index, const comm::Mesh& mesh,
                      std::int64_t rank) {
  std::int64_t start = 0;
  for (std::size_t i = 0; i < index; ++i)
    start += local_length(local_slice(parameter.pieces[i], mesh, rank), parameter.axis);
  return tensor.detach().narrow(parameter.axis, start,
                                local_slice(parameter.pieces[index], mesh, rank).shape[parameter.axis]);
}

void declare(Parameter& parameter, at::ScalarType dtype, const comm::Mesh& mesh, std::int64_t rank) {
  const auto options = at::TensorOptions().dtype(parameter.dtype.value_or(dtype)).device(at::kMeta);
  parameter.data = at::empty(local_shape(parameter, mesh, rank), options);
}

void allocate(Parameter& parameter, at::Device device, const comm::Mesh& mesh, std::int64_t rank) {
  const auto options = at::TensorOptions().dtype(parameter.data.scalar_type()).device(device);
  parameter.data = at::zeros(local_shape(parameter, mesh, rank), options).requires_grad_();
}

void materialize(Parameter& parameter, at::Device device, std::uint64_t seed, const comm::Mesh& mesh,
                 std::int64_t rank) {
  allocate(parameter, device, mesh, rank);
  for (std::size_t i = 0; i < parameter.pieces.size(); ++i) {
    const Piece& piece = parameter.pieces[i];
    at::Tensor view = piece_view(parameter, parameter.data, i, mesh, rank);
    if (piece.init.kind == Init::Kind::kConstant) {
      view.fill_(piece.init.value);
      continue;
    }
    const Slice slice = local_slice(piece, mesh, rank);
    const bool direct = view.is_contiguous() && view.is_cpu() && view.scalar_type() == at::kFloat;
    at::Tensor values = direct ? view : at::empty(slice.shape, at::kFloat);
    fill_normal(values, piece.init.value, stream_key(seed, piece.name), piece.shape, slice.offset);
    if (!direct) view.copy_(values);
  }
}

std::int64_t num_elements(const Parameter& parameter) {
  std::int64_t count = 0;
  for (const Piece& piece : parameter.pieces) {
    count += std::accumulate(piece.shape.begin(), piece.shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  return count;
}

}  // namespace pharos::tensor
