#include "pharos/hf/weights.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/transfer/compare_tensors.h"

namespace pharos::hf {
namespace {

using checkpoint::ElementType;
using checkpoint::SafetensorsSet;
using checkpoint::shape_text;
using checkpoint::TensorEntry;

constexpr const char* kPositions = "embedding.position_embeddings.weight";
constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kOutput = "output_layer.weight";

/// One piece to fill and where its values lie.
struct Wanted {
  const tensor::Piece* piece;
  Location location;
  tensor::Slice slice;
  at::Tensor target;
};

bool is_weight_type(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kBF16 || type == ElementType::kF16 ||
         type == ElementType::kF64;
}

/// Empty when the stored tensor fits the piece.
std::string mismatch(const std::string& piece, const std::vector<std::int64_t>& expected, const TensorEntry& entry) {
  if (!is_weight_type(entry.type))
    return entry.name + " has the type " + checkpoint::element_type_name(entry.type) + ", not F64, F32, BF16 or F16";
  const bool has_more_positions =
      piece == kPositions && entry.shape.size() == 2 && entry.shape[0] >= expected[0] && entry.shape[1] == expected[1];
  if (entry.shape == expected || has_more_positions) return "";
  return entry.name + " (file " + shape_text(entry.shape) + ", model " + shape_text(expected) + ")";
}

struct Problems {
  std::vector<std::string> missing, surplus, misshapen, other;

  bool empty() const { return missing.empty() && surplus.empty() && misshapen.empty() && other.empty(); }

  [[noreturn]] void raise(const std::filesystem::path& folder) const {
    std::vector<std::string> lines = other;
    const auto add = [&](const char* title, const std::vector<std::string>& names) {
      if (!names.empty()) lines.push_back(std::to_string(names.size()) + " " + title + ": " + base::join(names, ", "));
    };
    add("missing in the files", missing);
    add("not in the model", surplus);
    add("of another shape or type", misshapen);
    throw base::UserError({.what = "The weights in '" + folder.string() + "' do not fit the model.",
                           .where = folder.string(),
                           .why = base::join(lines, "; "),
                           .fix =
                               "Check that the folder's config.json and files belong together and are all there; a run "
                               "takes the model's shape from it by model.hf_path."});
  }
};

/// A tied model has one matrix; a stored lm_head must say the same.
std::string compare_tied_head(const SafetensorsSet& set, const NameTable& table, bool with_prefix) {
  const Location head = *locate(table, kOutput, with_prefix), words = *locate(table, kWords, with_prefix);
  if (set.find(head.tensor) == nullptr || set.find(words.tensor) == nullptr) return "";
  if (same_tensor(set, head.tensor, set, words.tensor)) return "";
  return head.tensor + " differs from " + words.tensor + ", but config.json ties them (tie_word_embeddings)";
}

/// Layers of multi-token prediction share the model's embedding and output layer; copies stored with them must say the
/// same.
void compare_copies(const SafetensorsSet& set, const NameTable& table, bool with_prefix, Problems& problems) {
  const std::string words = locate(table, kWords, with_prefix)->tensor;
  for (const auto& [copy, original] : stored_copies(table, with_prefix)) {
    const std::string& same = set.find(original) != nullptr ? original : words;  // a tied model may store one of them
    if (set.find(copy) == nullptr || set.find(same) == nullptr || same_tensor(set, copy, set, same)) continue;
    problems.other.push_back(copy + " differs from " + same + ", which layers of multi-token prediction share");
  }
}

std::vector<Wanted> list_wanted(const std::vector<tensor::Parameter*>& parameters, const NameTable& table,
                                bool with_prefix, const comm::Mesh& mesh, std::int64_t rank, Problems& problems) {
  std::vector<Wanted> wanted;
  for (const auto* parameter : parameters) {
    for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
      const tensor::Piece& piece = parameter->pieces[i];
      const auto location = locate(table, piece.name, with_prefix);
      if (!location) {
        problems.missing.push_back(piece.name + " (a " + family_name(*table.family) + " has none)");
        continue;
      }
      wanted.push_back({&piece, *location, tensor::local_slice(piece, mesh, rank),
                        tensor::piece_view(*parameter, parameter->data, i, mesh, rank)});
    }
  }
  return wanted;
}

/// Missing and misshapen tensors, those of other ranks' experts included; returns the names of all that were looked at.
std::set<std::string> check_wanted(const std::vector<Wanted>& wanted, const SafetensorsSet& set, Problems& problems) {
  std::set<std::string> used;
  for (const Wanted& item : wanted) {
    const std::vector<std::int64_t> expected = item.location.tensor_shape(item.piece->shape);
    for (const std::string& name : item.location.tensors(item.piece->shape)) {
      if (!used.insert(name).second) continue;  // a fused tensor is reported once
      const TensorEntry* entry = set.find(name);
      if (entry == nullptr) {
        problems.missing.push_back(name);
      } else if (const std::string text = mismatch(item.piece->name, expected, *entry); !text.empty()) {
        problems.misshapen.push_back(text);
      }
    }
  }
  return used;
}

void find_surplus(const SafetensorsSet& set, const NameTable& table, bool with_prefix,
                  const std::set<std::string>& used, bool is_tied, bool is_whole, Problems& problems) {
  const std::string head = locate(table, kOutput, with_prefix)->tensor;
  for (const std::string& name : set.names()) {
    if (used.contains(name) || is_ignorable(table, name, with_prefix) || (is_tied && name == head)) continue;
    if (is_whole || !is_known_tensor(table, name, with_prefix)) problems.surplus.push_back(name);
  }
}

}  // namespace

bool has_prefix(const SafetensorsSet& set, const NameTable& table) {
  const std::vector<std::string> names = set.names();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.starts_with(table.prefix); });
}

at::Tensor narrow_to(const at::Tensor& target, const tensor::Slice& slice, const Fragment& fragment) {
  at::Tensor part = target;
  for (std::size_t axis = 0; axis < slice.shape.size(); ++axis) {
    part = part.narrow(static_cast<std::int64_t>(axis), fragment.piece.offset[axis] - slice.offset[axis],
                       fragment.piece.shape[axis]);
  }
  return part;
}

void read_fragment(const SafetensorsSet& set, const std::string& name, const Fragment& fragment,
                   const at::Tensor& target) {
  // A view without values says which elements the rectangle's are.
  at::Tensor stored = at::empty(fragment.tensor_shape, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
  for (std::size_t axis = 0; axis < fragment.tensor_shape.size(); ++axis)
    stored = stored.narrow(static_cast<std::int64_t>(axis), fragment.stored.offset[axis], fragment.stored.shape[axis]);
  const at::Tensor piece = as_piece(stored, fragment);
  set.copy_strided(name, piece.storage_offset(), piece.strides(), target);
}

void read_piece(const SafetensorsSet& set, const Location& location, const std::vector<std::int64_t>& shape,
                const tensor::Slice& slice, const at::Tensor& target, const std::string& prefix) {
  for (const Fragment& fragment : location.fragments(slice, shape))
    read_fragment(set, prefix + fragment.tensor, fragment, narrow_to(target, slice, fragment));
}

namespace {

/// Layers of multi-token prediction among the parameters.
bool has_prediction_layers(const std::vector<tensor::Parameter*>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(), [](const tensor::Parameter* parameter) {
    return parameter->pieces.front().name.starts_with("mtp.");
  });
}

/// fp16 ends at 65504; what is beyond it has become infinite.
void check_range(const std::vector<Wanted>& wanted, const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const Wanted& item : wanted) {
    if (item.target.scalar_type() == at::kHalf && !item.target.isfinite().all().item<bool>())
      names.push_back(item.piece->name);
  }
  if (names.empty()) return;
  throw base::UserError({.what = "Weights in '" + folder.string() + "' are beyond the range of fp16 or not finite.",
                         .where = folder.string(),
                         .why = base::join(names, ", "),
                         .fix = "Train with `mixed_precision=bf16_mixed`, or in fp32."});
}

/// What is to be read from an open folder; raises all problems.
std::vector<Wanted> find_weights(const std::vector<tensor::Parameter*>& parameters, HfModel hf,
                                 const SafetensorsSet& set, const std::filesystem::path& folder, const comm::Mesh& mesh,
                                 std::int64_t rank) {
  drop_absent_prediction_layers(hf, set.names());
  // A model, or a stage, without such layers passes over those that are stored.
  if (!has_prediction_layers(parameters)) hf.model.mtp_num_layers.reset();
  const NameTable table = name_table(hf);
  const bool with_prefix = has_prefix(set, table);
  Problems problems;
  std::vector<Wanted> wanted = list_wanted(parameters, table, with_prefix, mesh, rank, problems);
  const std::set<std::string> used = check_wanted(wanted, set, problems);
  const bool is_tied = hf.model.share_embeddings_and_output_weights;
  if (is_tied) {
    if (const std::string text = compare_tied_head(set, table, with_prefix); !text.empty())
      problems.other.push_back(text);
  }
  compare_copies(set, table, with_prefix, problems);
  find_surplus(set, table, with_prefix, used, is_tied, mesh.size(comm::MeshDim::kPipeline) == 1, problems);
  if (!problems.empty()) problems.raise(folder);
  return wanted;
}

}  // namespace

void check_weights(const std::vector<tensor::Parameter*>& parameters, const std::filesystem::path& folder,
                   const comm::Mesh& mesh, std::int64_t rank) {
  find_weights(parameters, read_hf_config(folder), SafetensorsSet(folder), folder, mesh, rank);
}

void load_weights(const std::vector<tensor::Parameter*>& parameters, const std::filesystem::path& folder,
                  const comm::Mesh& mesh, std::int64_t rank) {
  const SafetensorsSet set(folder);
  const std::vector<Wanted> wanted = find_weights(parameters, read_hf_config(folder), set, folder, mesh, rank);
  const at::NoGradGuard no_grad;
  for (auto* parameter : parameters) {
    const bool is_padded = std::any_of(parameter->pieces.begin(), parameter->pieces.end(),
                                       [](const tensor::Piece& piece) { return piece.padded_rows > 0; });
    if (is_padded) parameter->data.zero_();
  }
  for (const Wanted& item : wanted) read_piece(set, item.location, item.piece->shape, item.slice, item.target);
  check_range(wanted, folder);
}

}  // namespace pharos::hf
