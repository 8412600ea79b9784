// What a rank holds of a model and its optimizer, whole or in fragments: saving reads it, loading fills it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "pharos/tensor/parameter.h"

namespace pharos::checkpoint {

/// One kind of values of one parameter. `parameter->data` gives only its sizes here: it may be on the meta device.
struct Held {
  tensor::Parameter* parameter = nullptr;
  /// Empty: the weights. Else the kind of state, stored as KIND/PIECE: "exp_avg", "exp_avg_sq", "main_param" (fp32
  /// parameters of a bf16 or fp16 model), …
  std::string kind = {};
  /// Shaped like `parameter->data`, or with is_fragment [elements]. An undefined tensor is left out.
  at::Tensor values = {};
  /// Where a fragment begins in the flattened local parameter (row-major, padding included).
  std::int64_t first_element = 0;
  /// The fragments of a parameter on the ranks of one data-parallel (and context-parallel) group are disjoint, and
  /// together they are the local parameter: each rank writes its own. May be empty.
  bool is_fragment = false;
};

/// Every parameter of this rank is listed, by an empty fragment if need be: loading takes weights of the checkpoint
/// that are not listed for surplus.
using Contents = std::vector<Held>;

/// The whole weights of `parameters`, without state.
Contents weights_of(const std::vector<tensor::Parameter*>& parameters);

/// Names of all their pieces.
std::set<std::string> piece_names(const std::vector<tensor::Parameter*>& parameters);

/// Leaves the weights.
void drop_state(Contents& contents);

/// Kinds of state in the order of their first appearance.
std::vector<std::string> state_kinds(const Contents& contents);

/// "exp_avg/decoder.final_layernorm.weight": what values of `kind` of `piece` are called in a checkpoint.
std::string stored_name(const std::string& kind, const tensor::Piece& piece);

}  // namespace pharos::checkpoint
