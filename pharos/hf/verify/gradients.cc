// Gradients of a verification: each rank compares what it holds, sums over all ranks make the norms.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pharos/base/error.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/hf/verify/session.h"
#include "pharos/hf/weights.h"

namespace pharos::hf {
namespace {

constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kRelative = "relative L2";
constexpr const char* kAbsolute = "absolute";

/// Of one tensor of the checkpoint, over the ranks that hold parts of it, copies counted as often as they are held.
struct Sums {
  double difference = 0, reference = 0, gradient = 0, elements = 0;
};

}  // namespace

at::Tensor expected_values(const checkpoint::SafetensorsSet& oracle, const std::filesystem::path& path,
                           const std::string& name, at::IntArrayRef shape) {
  const auto* entry = oracle.find(name);
  if (entry == nullptr || entry->shape != shape.vec()) {
    throw base::UserError(
        {.what = "'" + path.string() + "': '" + name + "' " +
                 (entry == nullptr ? "is missing" : "has the shape " + checkpoint::shape_text(entry->shape)) +
                 ", the model has " + checkpoint::shape_text(shape.vec()) + ".",
         .where = path.string(),
         .fix = "Give the oracle that was made from this folder."});
  }
  using Type = checkpoint::ElementType;
  const bool is_real =
      entry->type == Type::kF64 || entry->type == Type::kF32 || entry->type == Type::kBF16 || entry->type == Type::kF16;
  if (!is_real) {
    throw base::UserError({.what = "'" + path.string() + "': '" + name + "' is not F64, F32, BF16 or F16.",
                           .where = path.string(),
                           .fix = "Store the values as they were computed, without a conversion."});
  }
  const at::Tensor values = oracle.view(name).to(at::kFloat);
  if (!at::isfinite(values).all().item<bool>()) {
    throw base::UserError({.what = "'" + path.string() + "': '" + name + "' holds values that are not finite.",
                           .where = path.string(),
                           .why = "Nothing can be compared with them.",
                           .fix = "Make the oracle again."});
  }
  return values;
}

double relative_difference(double difference, double reference, double whole) {
  constexpr double kFloor = 1e-2;
  return difference / std::max({reference, kFloor * whole, 1e-30});
}

NameTable VerifySession::gradient_names(bool& with_prefix) const {
  NameTable table = name_table(hf_);
  with_prefix = oracle_.tensors.find("grad." + locate(table, kWords, true)->tensor) != nullptr;
  return table;
}

void VerifySession::list_tensors(model::Transformer& whole) {
  bool with_prefix = true;
  const NameTable table = gradient_names(with_prefix);
  std::map<std::string, std::int64_t> sizes;
  for (const tensor::Parameter* parameter : whole.parameters()) {
    if (!parameter->trainable) continue;
    for (const tensor::Piece& piece : parameter->pieces) {
      const auto location = locate(table, piece.name, with_prefix);
      if (!location) continue;  // check_weights() says so
      const std::vector<std::int64_t> shape = location->tensor_shape(piece.shape);
      for (const std::string& name : location->tensors(piece.shape)) {
        expected("grad." + name, shape);
        sizes[name] = checkpoint::num_elements(shape);
      }
    }
  }
  for (const auto& [name, size] : sizes) {
    tensor_names_.push_back(name);
    tensor_sizes_.push_back(size);
  }
}

void VerifySession::compare_gradients() {
  bool with_prefix = true;
  const NameTable table = gradient_names(with_prefix);
  std::map<std::string, Sums> sums;
  for (const tensor::Parameter* parameter : model_->parameters()) {
    if (!parameter->main_grad.defined()) continue;
    for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
      const tensor::Piece& piece = parameter->pieces[i];
      const tensor::Slice slice = tensor::local_slice(piece, mesh_, rank_);
      const at::Tensor gradient = tensor::piece_view(*parameter, parameter->main_grad, i, mesh_, rank_);
      for (const Fragment& fragment : locate(table, piece.name, with_prefix)->fragments(slice, piece.shape)) {
        const at::Tensor mine =
            narrow_to(gradient, slice, fragment).to(at::kCPU, at::kDouble) * optimizer_->gradient_factor();
        const at::Tensor reference = at::empty(mine.sizes(), at::kDouble);
        read_fragment(oracle_.tensors, "grad." + fragment.tensor, fragment, reference);
        Sums& sum = sums[fragment.tensor];
        sum.difference += (mine - reference).square().sum().item<double>();
        sum.reference += reference.square().sum().item<double>();
        sum.gradient += mine.square().sum().item<double>();
        sum.elements += static_cast<double>(mine.numel());
      }
    }
  }
  std::vector<double> values;
  for (const std::string& name : tensor_names_) {
    const Sums& sum = sums[name];
    values.insert(values.end(), {sum.difference, sum.reference, sum.gradient, sum.elements});
  }
  values = world_.all().reduce_values(std::move(values), comm::ReduceOp::kSum, {"gradient differences"});
  add_gradient_checks(values);
}

void VerifySession::add_gradient_checks(const std::vector<double>& sums) {
  double squares = 0;
  const double grad_norm = expected("grad_norm", {1}).item<double>();
  for (std::size_t i = 0; i < tensor_names_.size(); ++i) {
    const double difference = sums[4 * i], reference = sums[4 * i + 1],
                 copies = sums[4 * i + 3] / static_cast<double>(tensor_sizes_[i]);
    squares += sums[4 * i + 2] / copies;
    // A rank held nothing of the tensor: it has not been compared.
    const double value =
        copies < 1 ? std::nan("")
                   : relative_difference(std::sqrt(difference), std::sqrt(reference), grad_norm * std::sqrt(copies));
    add("grad." + tensor_names_[i], value, tolerances_.gradient, kRelative);
  }
  for (const std::string& name : oracle_.tensors.names()) {
    const bool is_known = std::binary_search(tensor_names_.begin(), tensor_names_.end(),
                                             name.substr(std::min<std::size_t>(5, name.size())));
    if (name.starts_with("grad.") && !is_known)
      add(name + " (not in the model)", std::nan(""), tolerances_.gradient, kRelative);
  }
  add("grad_norm", std::abs(std::sqrt(squares) - grad_norm), tolerances_.grad_norm, kAbsolute);
}

}  // namespace pharos::hf
