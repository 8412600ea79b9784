#include "pharos/hf/hf_names.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/hf/families/family.h"

namespace pharos::hf {
namespace {

constexpr std::string_view kLayer = "{}", kExpert = "{e}";

/// Numbers found in, or to be put into, the holes of a pattern; -1: none.
struct Holes {
  std::int64_t layer = -1;
  std::int64_t expert = -1;
};

/// Takes a number without leading zeros from the front of `text`.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || number < 0 || (length > 1 && text.front() == '0')) return std::nullopt;
  text.remove_prefix(length);
  return number;
}

std::optional<Holes> match(std::string_view pattern, std::string_view text) {
  Holes holes;
  while (!pattern.empty()) {
    const bool is_layer = pattern.starts_with(kLayer), is_expert = pattern.starts_with(kExpert);
    if (is_layer || is_expert) {
      const auto number = take_number(text);
      if (!number) return std::nullopt;
      (is_layer ? holes.layer : holes.expert) = *number;
      pattern.remove_prefix(is_layer ? kLayer.size() : kExpert.size());
    } else {
      if (text.empty() || text.front() != pattern.front()) return std::nullopt;
      pattern.remove_prefix(1);
      text.remove_prefix(1);
    }
  }
  return text.empty() ? std::optional(holes) : std::nullopt;
}

std::string fill(std::string pattern, std::string_view hole, std::int64_t number) {
  if (const std::size_t at = pattern.find(hole); at != std::string::npos)
    pattern.replace(at, hole.size(), std::to_string(number));
  return pattern;
}

/// `tensor` without the prefix that every name but the head's has, or nullopt.
std::optional<std::string_view> without_prefix(const NameTable& table, std::string_view tensor, bool with_prefix) {
  if (!with_prefix) return tensor;
  if (!tensor.starts_with(table.prefix)) return std::nullopt;
  return tensor.substr(std::string_view(table.prefix).size());
}

bool is_of_prediction(const NameRule& rule) { return std::string_view(rule.piece).starts_with("mtp."); }

/// A layer of multi-token prediction holds a decoder layer, stored under the numbers after the decoder's.
std::string decoder_name(const NameTable& table, const std::string& piece) {
  static constexpr std::string_view kStart = "mtp.layers.", kInner = ".mtp_model_layer.";
  std::string_view rest = piece;
  if (!rest.starts_with(kStart)) return piece;
  rest.remove_prefix(kStart.size());
  const auto depth = take_number(rest);
  if (!depth || !rest.starts_with(kInner)) return piece;
  return "decoder.layers." + std::to_string(table.num_layers + *depth) + "." + std::string(rest.substr(kInner.size()));
}

/// The number of the layer that `tensor` belongs to, if its name has one.
std::optional<std::int64_t> layer_of(std::string_view name) {
  static constexpr std::string_view kStart = "layers.";
  if (!name.starts_with(kStart)) return std::nullopt;
  name.remove_prefix(kStart.size());
  return take_number(name);
}

std::size_t rows_axis(const Location& location) { return location.is_of_experts ? 1 : 0; }

}  // namespace

NameTable name_table(const HfModel& hf) {
  const Family& family = *hf.family;
  return {.family = &family,
          .prefix = family.prefix,
          .rules = family.names,
          .copies = family.copies,
          .ignorable = family.ignorable,
          .num_layers = hf.model.num_layers.value_or(0),
          .num_prediction_layers = hf.model.mtp_num_layers.value_or(0),
          .may_have_prediction_layers = family.has_prediction_layers};
}

bool Location::is_per_expert() const { return tensor.find(kExpert) != std::string::npos; }

std::vector<std::string> Location::tensors(const std::vector<std::int64_t>& shape) const {
  if (!is_per_expert()) return {tensor};
  std::vector<std::string> names;
  for (std::int64_t expert = 0; expert < shape[0]; ++expert) names.push_back(fill(tensor, kExpert, expert));
  return names;
}

std::vector<std::int64_t> Location::tensor_shape(const std::vector<std::int64_t>& shape) const {
  std::vector<std::int64_t> stored = shape;
  stored[rows_axis(*this)] *= num_parts;
  if (is_per_expert()) stored.erase(stored.begin());
  if (transposed) std::swap(stored[stored.size() - 1], stored[stored.size() - 2]);
  return stored;
}

std::vector<Fragment> Location::fragments(const tensor::Slice& slice, const std::vector<std::int64_t>& shape) const {
  const std::size_t rows = rows_axis(*this);
  Fragment whole{.tensor = tensor,
                 .tensor_shape = tensor_shape(shape),
                 .piece = {slice.offset, slice.shape},
                 .stored = {slice.offset, slice.shape},
                 .transposed = transposed,
                 .is_one_expert = is_per_expert(),
                 .rows_axis = static_cast<std::int64_t>(rows)};
  if (interleaved) {
    whole.part = part;
    whole.step = num_parts;
    whole.stored.offset[rows] *= num_parts;
    whole.stored.shape[rows] *= num_parts;
  } else {
    whole.stored.offset[rows] += part * shape[rows];
  }
  for (auto* axes : {&whole.stored.offset, &whole.stored.shape}) {
    if (is_per_expert()) axes->erase(axes->begin());
    if (transposed) std::swap((*axes)[axes->size() - 1], (*axes)[axes->size() - 2]);
  }
  if (!is_per_expert()) return {whole};
  whole.rows_axis -= 1;
  std::vector<Fragment> fragments;
  for (std::int64_t i = 0; i < slice.shape[0]; ++i) {
    Fragment& fragment = fragments.emplace_back(whole);
    fragment.tensor = fill(tensor, kExpert, slice.offset[0] + i);
    fragment.piece.offset[0] = slice.offset[0] + i;
    fragment.piece.shape[0] = 1;
  }
  return fragments;
}

at::Tensor as_piece(const at::Tensor& values, const Fragment& fragment) {
  at::Tensor view = fragment.transposed ? values.transpose(-1, -2) : values;
  if (fragment.step > 1) view = view.slice(fragment.rows_axis, fragment.part, std::nullopt, fragment.step);
  return fragment.is_one_expert ? view.unsqueeze(0) : view;
}

std::optional<Location> locate(const NameTable& table, const std::string& piece, bool with_prefix) {
  const std::string name = decoder_name(table, piece);
  for (const NameRule& rule : table.rules) {
    const auto holes = match(rule.piece, name);
    if (!holes) continue;
    const std::int64_t layer = holes->layer + (is_of_prediction(rule) ? table.num_layers : 0);
    const std::string prefix = with_prefix && !rule.is_head ? table.prefix : "";
    return Location{.tensor = prefix + fill(rule.tensor, kLayer, layer),
                    .transposed = rule.transposed,
                    .part = rule.part,
                    .num_parts = rule.num_parts,
                    .interleaved = rule.interleaved,
                    .is_fp32 = rule.is_fp32,
                    .is_of_experts = std::string_view(rule.piece).find(".experts.") != std::string_view::npos};
  }
  return std::nullopt;
}

std::vector<StoredTensor> stored_tensors(const NameTable& table, const std::vector<const tensor::Piece*>& pieces,
                                         bool with_prefix) {
  std::vector<StoredTensor> stored;
  std::map<std::string, std::size_t> index;
  std::vector<std::string> unknown;
  const auto add = [&](std::size_t piece, const Location& location) {
    const auto& shape = pieces[piece]->shape;
    const tensor::Slice all{std::vector<std::int64_t>(shape.size(), 0), shape};
    for (Fragment& fragment : location.fragments(all, shape)) {
      const auto [at, is_new] = index.emplace(fragment.tensor, stored.size());
      if (is_new) stored.push_back({fragment.tensor, fragment.tensor_shape, location.is_fp32, {}});
      stored[at->second].sources.push_back({piece, std::move(fragment)});
    }
  };
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (const auto location = locate(table, pieces[i]->name, with_prefix)) {
      add(i, *location);
    } else {
      unknown.push_back(pieces[i]->name);
    }
  }
  if (!unknown.empty())
    throw base::UserError({.what = "Checkpoints of the family " + std::string(family_name(*table.family)) +
                                   " have no tensor for " + std::to_string(unknown.size()) + " weights of the model.",
                           .why = base::join(unknown, ", "),
                           .fix = "Export as a family that has them."});
  for (std::int64_t depth = 0; depth < table.num_prediction_layers; ++depth) {
    for (const NameRule& copy : table.copies) {
      const auto found =
          std::find_if(pieces.begin(), pieces.end(), [&](const auto* piece) { return piece->name == copy.piece; });
      if (found == pieces.end()) continue;
      const std::string name = fill(copy.tensor, kLayer, table.num_layers + depth);
      add(static_cast<std::size_t>(found - pieces.begin()), {.tensor = (with_prefix ? table.prefix : "") + name});
    }
  }
  return stored;
}

std::vector<std::pair<std::string, std::string>> stored_copies(const NameTable& table, bool with_prefix) {
  std::vector<std::pair<std::string, std::string>> copies;
  for (std::int64_t depth = 0; depth < table.num_prediction_layers; ++depth) {
    for (const NameRule& copy : table.copies) {
      copies.emplace_back((with_prefix ? table.prefix : "") + fill(copy.tensor, kLayer, table.num_layers + depth),
                          locate(table, copy.piece, with_prefix)->tensor);
    }
  }
  return copies;
}

bool is_known_tensor(const NameTable& table, const std::string& tensor, bool with_prefix) {
  const auto name = without_prefix(table, tensor, with_prefix);
  return std::any_of(table.rules.begin(), table.rules.end(), [&](const NameRule& rule) {
    if (rule.is_head) return tensor == rule.tensor;
    const auto holes = name ? match(rule.tensor, *name) : std::nullopt;
    if (!holes) return false;
    const bool is_of_decoder = holes->layer < table.num_layers;
    return holes->layer < table.num_layers + table.num_prediction_layers && (!is_of_prediction(rule) || !is_of_decoder);
  });
}

bool is_ignorable(const NameTable& table, const std::string& tensor, bool with_prefix) {
  const auto name = without_prefix(table, tensor, with_prefix);
  if (!name) return false;
  const auto layer = layer_of(*name);
  const bool is_of_prediction = layer && table.may_have_prediction_layers && *layer >= table.num_layers;
  if (is_of_prediction && table.num_prediction_layers == 0) return true;
  const bool is_copy = is_of_prediction && std::any_of(table.copies.begin(), table.copies.end(), [&](const auto& copy) {
                         return match(copy.tensor, *name).has_value();
                       });
  return is_copy || std::any_of(table.ignorable.begin(), table.ignorable.end(),
                                [&](const char* pattern) { return match(pattern, *name).has_value(); });
}

bool has_stored_prediction_layers(const HfModel& hf, const std::vector<std::string>& tensors) {
  const NameTable table = name_table(hf);
  return table.may_have_prediction_layers &&
         std::any_of(tensors.begin(), tensors.end(), [&](const std::string& tensor) {
           const auto name = without_prefix(table, tensor, tensor.starts_with(table.prefix));
           const auto layer = layer_of(*name);
           return layer && *layer >= table.num_layers;
         });
}

void drop_absent_prediction_layers(HfModel& hf, const std::vector<std::string>& tensors) {
  if (hf.model.mtp_num_layers && !has_stored_prediction_layers(hf, tensors)) hf.model.mtp_num_layers.reset();
}

HfModel read_hf_model(const std::filesystem::path& folder) {
  HfModel hf = read_hf_config(folder);
  if (!hf.model.mtp_num_layers) return hf;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    if (file.path().extension() != ".safetensors") continue;
    drop_absent_prediction_layers(hf, checkpoint::SafetensorsSet(folder).names());
    break;
  }
  return hf;
}

}  // namespace pharos::hf
