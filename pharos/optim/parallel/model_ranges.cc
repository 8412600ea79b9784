#include "pharos/optim/parallel/model_ranges.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

/// Ranges of piece `index` in its flattened parameter, without padding rows.
std::vector<ElementRange> piece_ranges(std::size_t number, const tensor::Parameter& parameter, std::size_t index,
                                       const comm::Mesh& mesh, std::int64_t rank) {
  const at::Tensor whole = at::empty(parameter.data.sizes(), at::TensorOptions().device(at::kMeta));
  const at::Tensor view = tensor::piece_view(parameter, whole, index, mesh, rank);
  const std::int64_t axis = parameter.axis;
  const std::int64_t row = axis == 0 ? whole.numel() : whole.stride(axis - 1);
  const std::int64_t length = view.size(axis) * whole.stride(axis);
  std::vector<ElementRange> ranges;
  if (length == 0) return ranges;
  for (std::int64_t begin = view.storage_offset(); begin < whole.numel(); begin += row) {
    ranges.push_back({number, begin, begin + length});
  }
  return ranges;
}

/// How many neighbouring ranks along `dim` hold the same part of a piece.
std::int64_t num_copies(const tensor::Piece& piece, comm::MeshDim dim, const comm::Mesh& mesh) {
  for (const tensor::Split& split : piece.splits) {
    if (split.dim == dim) return split.replicas;
  }
  return mesh.size(dim);
}

/// Whether `rank` is the first of those that hold the same part of an expert's piece of one model.
bool is_first_holder(const tensor::Piece& piece, const comm::Mesh& mesh, std::int64_t rank) {
  constexpr comm::MeshDim kDims[] = {comm::MeshDim::kExpertTensor, comm::MeshDim::kExpert};
  return std::all_of(std::begin(kDims), std::end(kDims),
                     [&](comm::MeshDim dim) { return mesh.coordinate(rank, dim) % num_copies(piece, dim, mesh) == 0; });
}

bool is_split(const tensor::Piece& piece) {
  return std::any_of(piece.splits.begin(), piece.splits.end(),
                     [](const tensor::Split& split) { return split.dim == comm::MeshDim::kTensor; });
}

using Gaps = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Appends what lies between the gaps of `flat`.
void cut(const at::Tensor& flat, Gaps gaps, std::vector<at::Tensor>& views) {
  std::sort(gaps.begin(), gaps.end());
  gaps.emplace_back(flat.numel(), flat.numel());
  std::int64_t begin = 0;
  for (const auto& [gap_begin, gap_end] : gaps) {
    PHAROS_CHECK(gap_begin >= begin, "pieces of a parameter overlap");
    if (gap_begin > begin) views.push_back(flat.narrow(0, begin, gap_begin - begin));
    begin = gap_end;
  }
}

void append(std::vector<ElementRange>& to, const std::vector<ElementRange>& ranges) {
  to.insert(to.end(), ranges.begin(), ranges.end());
}

}  // namespace

ModelRanges model_ranges(const std::vector<tensor::Parameter*>& parameters, const comm::Mesh& mesh, std::int64_t rank) {
  const std::int64_t tensor_size = mesh.size(comm::MeshDim::kTensor);
  const std::int64_t coordinate = mesh.coordinate(rank, comm::MeshDim::kTensor);
  ModelRanges result;
  result.counted.resize(parameters.size());
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    const tensor::Parameter& parameter = *parameters[index];
    if (tensor::is_expert(parameter)) {
      PHAROS_CHECK(!parameter.sum_gradient_over_tensor, parameter.name + ": each rank has an expert's whole gradient");
      for (std::size_t piece = 0; piece < parameter.pieces.size(); ++piece) {
        const bool is_counted = is_first_holder(parameter.pieces[piece], mesh, rank);
        append(is_counted ? result.counted[index] : result.counted_elsewhere,
               piece_ranges(index, parameter, piece, mesh, rank));
      }
      continue;
    }
    const auto classify = [&](const std::vector<ElementRange>& ranges, std::int64_t copies, bool is_summed) {
      const bool is_counted = parameter.tie != tensor::Parameter::Tie::kCopy && coordinate % copies == 0;
      append(is_counted ? result.counted[index] : result.counted_elsewhere, ranges);
      if (is_summed && copies > 1) append(result.summed[static_cast<int>(copies)], ranges);
    };
    if (parameter.pieces.empty()) {
      classify({{index, 0, parameter.data.numel()}}, tensor_size, parameter.sum_gradient_over_tensor);
    }
    for (std::size_t piece = 0; piece < parameter.pieces.size(); ++piece) {
      classify(piece_ranges(index, parameter, piece, mesh, rank),
               num_copies(parameter.pieces[piece], comm::MeshDim::kTensor, mesh),
               parameter.sum_gradient_over_tensor || is_split(parameter.pieces[piece]));
    }
  }
  return result;
}

at::Tensor view_of(const ElementRange& range, const FlatLayout& layout, const std::vector<HeldRange>& held_ranges,
                   const std::vector<at::Tensor>& held) {
  const Fragment fragment = fragment_of(layout, held_ranges, range.parameter, range.begin, range.end - range.begin);
  if (fragment.num_elements == 0) return {};
  return held.at(fragment.range).narrow(0, fragment.offset_in_range, fragment.num_elements);
}

std::vector<at::Tensor> views_without(const std::vector<ElementRange>& excluded, const FlatLayout& layout,
                                      const std::vector<HeldRange>& held_ranges, const std::vector<at::Tensor>& held) {
  std::vector<Gaps> gaps(held_ranges.size());
  for (const ElementRange& range : excluded) {
    const Fragment fragment = fragment_of(layout, held_ranges, range.parameter, range.begin, range.end - range.begin);
    if (fragment.num_elements == 0) continue;
    gaps[fragment.range].emplace_back(fragment.offset_in_range, fragment.offset_in_range + fragment.num_elements);
  }
  std::vector<at::Tensor> views;
  for (std::size_t index = 0; index < held_ranges.size(); ++index) cut(held[index], std::move(gaps[index]), views);
  return views;
}

std::vector<at::Tensor> views_without(const std::vector<ElementRange>& excluded, std::size_t parameter,
                                      std::int64_t first_element, const at::Tensor& values) {
  Gaps gaps;
  for (const ElementRange& range : excluded) {
    if (range.parameter != parameter) continue;
    const std::int64_t begin = std::max<std::int64_t>(range.begin - first_element, 0);
    const std::int64_t end = std::min(range.end - first_element, values.numel());
    if (begin < end) gaps.emplace_back(begin, end);
  }
  std::vector<at::Tensor> views;
  cut(values.reshape(-1), std::move(gaps), views);
  return views;
}

}  // namespace pharos::optim
