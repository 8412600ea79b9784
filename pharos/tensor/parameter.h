// One declaration of every weight. Initialisation, checkpoints, resharding, Hugging Face import and export, memory
// plans and the optimizer's groups read it; nobody keeps a second list of names or shapes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"

namespace pharos::tensor {

/// How one axis of a logical tensor is divided, in equal contiguous parts, over one mesh dimension.
struct Split {
  int axis;
  comm::MeshDim dim;
  int replicas = 1;  ///< neighbouring ranks that hold the same part (fewer KV heads than tensor-parallel ranks)
};

/// How a piece gets its first values.
struct Init {
  enum class Kind : std::uint8_t { kConstant, kNormal };
  Kind kind = Kind::kConstant;
  double value = 0;  ///< the constant, or the standard deviation of a normal with mean 0

  static Init constant(double value) { return {Kind::kConstant, value}; }
  static Init normal(double standard_deviation) { return {Kind::kNormal, standard_deviation}; }
};

/// A logical, unsharded tensor as people know it.
struct Piece {
  std::string name;                 ///< canonical: "decoder.layers.3.self_attention.q.weight"
  std::vector<std::int64_t> shape;  ///< global; a vocabulary axis is without padding
  std::vector<Split> splits;
  Init init;
  std::int64_t padded_rows = 0;  ///< 0, or the length of axis 0 with vocabulary padding; the padding is zero
};

struct Parameter;

/// Who manages where a parameter's values and gradients are (data-parallel strategies: values that are gathered before
/// they are used, gradients that are reduced as soon as they are complete). Called by nn/ on the training thread.
class ParameterKeeper {
 public:
  virtual ~ParameterKeeper() = default;
  /// `parameter.data` is about to be read; when this returns it holds the values, until another parameter is used.
  virtual void before_use(const Parameter& parameter) = 0;
  /// Something is about to be added to `parameter.main_grad`; when this returns it is defined.
  virtual void before_gradient(const Parameter& parameter) = 0;
  /// The gradient of one use in one microbatch has been added (num_uses of them make a microbatch's gradient).
  virtual void after_gradient(const Parameter& parameter) = 0;
};

/// What a layer multiplies with: the local slices of its pieces, concatenated along `axis`.
struct Parameter {
  std::vector<Piece> pieces;
  int axis = 0;
  at::Tensor data;       ///< local values in the compute type; on the meta device until materialised; requires grad
  at::Tensor main_grad;  ///< fp32 gradient of the same shape, a view of a flat buffer (optim::GradientBuffer)
  bool weight_decay = true;
  int num_uses = 1;  ///< layers that add to main_grad in one backward pass; 2 for tied embeddings on one stage
  /// Tensor-parallel ranks hold the same values but see only a part of the gradient (norms under sequence parallelism
  /// and over split heads, biases of row-parallel layers under sequence parallelism): it is summed over them.
  bool sum_gradient_over_tensor = false;
  /// Weights of embedding and output layer that two pipeline ranks hold: the gradients of both are summed; the copy is
  /// neither counted in norms nor stored.
  enum class Tie : std::uint8_t { kNone, kOriginal, kCopy };
  Tie tie = Tie::kNone;
  bool trainable =
      true;  ///< false: no gradient and no optimizer state: a buffer, or weights frozen by optimizer.freeze
  std::optional<at::ScalarType> dtype = {};  ///< of data; unset: what declare() is told
  ParameterKeeper* keeper = nullptr;         ///< none: data and main_grad are simply there

  /// Name for messages and optimizer state: that of the only piece, else the common stem, "…self_attention.qkv.weight".
  std::string name;
};

/// True when expert dimensions of the mesh divide the parameter: its copies lie on the ranks of an expert-data-parallel
/// group, those of any other one on the ranks of a data × context-parallel group.
bool is_expert(const Parameter& parameter);

/// The values, to be used at once.
const at::Tensor& value(const Parameter& parameter);

/// Calls add(main_grad) for a gradient of one use, if a gradient is wanted.
template <typename Add>
void add_gradient(const Parameter& parameter, const Add& add) {
  if (parameter.keeper != nullptr) parameter.keeper->before_gradient(parameter);
  if (!parameter.main_grad.defined()) return;
  add(at::Tensor(parameter.main_grad));
  if (parameter.keeper != nullptr) parameter.keeper->after_gradient(parameter);
}

/// Where a local slice lies in its logical tensor.
struct Slice {
  std::vector<std::int64_t> offset;  ///< per axis, in the global tensor
  std::vector<std::int64_t> shape;   ///< local, without padding
  std::int64_t padding_rows = 0;     ///< rows of zero padding that follow locally on axis 0
};

/// The part of `piece` that `rank` of `mesh` holds.
Slice local_slice(const Piece& piece, const comm::Mesh& mesh, std::int64_t rank);

/// Local shape of a parameter (pieces' slices concatenated, padding included).
std::vector<std::int64_t> local_shape(const Parameter& parameter, const comm::Mesh& mesh, std::int64_t rank);

/// The view of `tensor` (shaped like `parameter.data`, for example data, main_grad or an optimizer moment) that belongs
/// to piece `index`, without padding rows.
at::Tensor piece_view(const Parameter& parameter, const at::Tensor& tensor, std::size_t index, const comm::Mesh& mesh,
                      std::int64_t rank);

/// Makes `parameter.data` a meta tensor of the local shape and `dtype`, or Parameter::dtype where that is set.
void declare(Parameter& parameter, at::ScalarType dtype, const comm::Mesh& mesh, std::int64_t rank);

/// Allocates `parameter.data` on `device` and fills it with the initial values of its pieces, drawn from
/// (seed, piece name, global index): bitwise the same model in every layout.
void materialize(Parameter& parameter, at::Device device, std::uint64_t seed, const comm::Mesh& mesh,
                 std::int64_t rank);

/// Allocates `parameter.data` on `device`, zeroed: for values that come from a file.
void allocate(Parameter& parameter, at::Device device, const comm::Mesh& mesh, std::int64_t rank);

/// Number of logical elements over all pieces, without padding.
std::int64_t num_elements(const Parameter& parameter);

}  // namespace pharos::tensor
