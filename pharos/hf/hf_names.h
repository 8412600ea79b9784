// Where a piece lies in the tensors of a Hugging Face checkpoint: one table per family, read in both directions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pharos/hf/families/name_rule.h"
#include "pharos/hf/hf_config.h"
#include "pharos/tensor/parameter.h"

namespace pharos::hf {

/// A family's names for one model. Layers of multi-token prediction are stored behind the decoder's.
struct NameTable {
  const Family* family;
  const char* prefix;  ///< of every tensor but the head; checkpoints of the headless model lack it
  std::vector<NameRule> rules;
  /// Tensors beside the piece's own with the same values, in each layer of multi-token prediction ({}).
  std::vector<NameRule> copies;
  std::vector<const char*> ignorable;  ///< buffers that some checkpoints store, as patterns
  std::int64_t num_layers;             ///< of the decoder
  std::int64_t num_prediction_layers;
  bool may_have_prediction_layers;  ///< the family's files may have some, even if this model has none
};

NameTable name_table(const HfModel& hf);

/// A rectangle of a piece that lies in one stored tensor.
struct Fragment {
  std::string tensor;
  std::vector<std::int64_t> tensor_shape;  ///< of the whole stored tensor
  tensor::Slice piece;                     ///< the rectangle, in the piece's axes
  tensor::Slice stored;  ///< the smallest rectangle of the stored tensor that holds it, in the stored tensor's axes
  bool transposed = false;
  bool is_one_expert = false;  ///< the stored tensor lacks axis 0 of the piece
  std::int64_t rows_axis = 0;  ///< of `stored` with its last two axes swapped back if transposed
  int part = 0;                ///< of the rows in `stored`, those of the piece are part, part + step, …
  int step = 1;
};

/// `values` ([fragment.stored.shape], a view of the stored tensor) as a view of shape fragment.piece.shape: to read
/// from, or to copy the piece's values into.
at::Tensor as_piece(const at::Tensor& values, const Fragment& fragment);

/// The stored tensor, or tensors, of one piece, and where in them the piece lies.
struct Location {
  std::string tensor;  ///< with {e} for the expert's number where each has its own
  bool transposed = false;
  int part = 0;
  int num_parts = 1;
  bool interleaved = false;
  bool is_fp32 = false;
  bool is_of_experts = false;  ///< axis 0 of the piece counts experts, its rows are axis 1

  bool is_per_expert() const;
  /// Names of all tensors in which a piece of `shape` lies: one, or one an expert in order.
  std::vector<std::string> tensors(const std::vector<std::int64_t>& shape) const;
  /// Shape of one stored tensor for a piece of `shape`.
  std::vector<std::int64_t> tensor_shape(const std::vector<std::int64_t>& shape) const;
  /// What `slice` of a piece of `shape` consists of: one fragment, or one an expert in order. Padding is not in it.
  std::vector<Fragment> fragments(const tensor::Slice& slice, const std::vector<std::int64_t>& shape) const;
};

/// nullopt when the table has no line for `piece`.
std::optional<Location> locate(const NameTable& table, const std::string& piece, bool with_prefix);

/// A tensor to be written, and the pieces it is made of.
struct StoredTensor {
  struct Source {
    std::size_t piece;  ///< index of the piece
    Fragment fragment;
  };
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_fp32 = false;         ///< stays in fp32 when the other weights are converted
  std::vector<Source> sources;  ///< together they fill it
};

/// Every tensor of a checkpoint of `pieces` (all of a model, global shapes), in the order of the pieces: a tensor of
/// several pieces comes with the first, tensors of experts one expert after the other, copies last. UserError naming
/// every piece that the family has no name for.
std::vector<StoredTensor> stored_tensors(const NameTable& table, const std::vector<const tensor::Piece*>& pieces,
                                         bool with_prefix = true);

/// Names of the copies that the layers of multi-token prediction may hold, each with that of the tensor it is a copy
/// of.
std::vector<std::pair<std::string, std::string>> stored_copies(const NameTable& table, bool with_prefix);

/// True when some piece of the model may lie in `tensor` (with the number of any expert).
bool is_known_tensor(const NameTable& table, const std::string& tensor, bool with_prefix);

/// True for a tensor that says nothing the model needs: a buffer, a copy, a layer of multi-token prediction of a model
/// that is built without them.
bool is_ignorable(const NameTable& table, const std::string& tensor, bool with_prefix);

/// Whether one of `tensors`, the names in the files, belongs to a layer of multi-token prediction, announced or not.
bool has_stored_prediction_layers(const HfModel& hf, const std::vector<std::string>& tensors);

/// config.json may announce layers of multi-token prediction that the files lack (transformers drops them when it
/// saves). If none of `tensors`, the names in the files, belongs to one, the model is built without
/// (model.mtp_num_layers unset); otherwise it is unchanged, and those that are incomplete are missing tensors.
void drop_absent_prediction_layers(HfModel& hf, const std::vector<std::string>& tensors);

/// read_hf_config(), without layers of multi-token prediction that the folder's weights lack; where there are no
/// weights yet, as config.json says.
HfModel read_hf_model(const std::filesystem::path& folder);

}  // namespace pharos::hf
