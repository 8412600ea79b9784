// Which elements of a rank's parameters other ranks hold as well: what to count for sums over the whole model, and
// which gradients to add up over tensor-parallel ranks. All in elements of a FlatLayout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/optim/flat_layout.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Elements [begin, end) of a flattened parameter.
struct ElementRange {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool operator==(const ElementRange&) const = default;
};

struct ModelRanges {
  /// Ranges that another rank counts; in parameter order.
  std::vector<ElementRange> counted_elsewhere;
  /// Gradients to be summed over ranks that share a value: number of neighbouring ranks (the size of the whole
  /// tensor-parallel group for Parameter::sum_gradient_over_tensor) -> ranges.
  std::map<int, std::vector<ElementRange>> summed;
  /// [parameter] ranges of this rank that belong to the logical model (no padding) and that it counts.
  std::vector<std::vector<ElementRange>> counted;
};

/// A piece that no tensor-parallel split divides is counted at tensor coordinate 0, one that `replicas` neighbours hold
/// at the first of them, a tied copy nowhere: over tensor-parallel and pipeline ranks every element of the logical
/// model is counted once. Pieces of experts likewise, over expert, expert-tensor-parallel and pipeline ranks.
ModelRanges model_ranges(const std::vector<tensor::Parameter*>& parameters, const comm::Mesh& mesh, std::int64_t rank);

/// What a rank holds of `range`: a view into `held`, which has one tensor per held range; undefined if nothing.
at::Tensor view_of(const ElementRange& range, const FlatLayout& layout, const std::vector<HeldRange>& held_ranges,
                   const std::vector<at::Tensor>& held);

/// The parts of `held` that remain without `excluded`, merged where they touch (padding between parameters included).
std::vector<at::Tensor> views_without(const std::vector<ElementRange>& excluded, const FlatLayout& layout,
                                      const std::vector<HeldRange>& held_ranges, const std::vector<at::Tensor>& held);

/// The parts of `values`, the elements of `parameter` from first_element on, that remain without `excluded`; flat.
std::vector<at::Tensor> views_without(const std::vector<ElementRange>& excluded, std::size_t parameter,
                                      std::int64_t first_element, const at::Tensor& values);

}  // namespace pharos::optim
