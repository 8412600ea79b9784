#include "pharos/hf/transfer/compare_tensors.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "pharos/base/pages.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"

namespace pharos::hf {
namespace {

using checkpoint::element_type_name;
using checkpoint::SafetensorsSet;
using checkpoint::shape_text;
using checkpoint::TensorEntry;
using Kind = TensorDifference::Kind;

/// `count` elements from `first` on of a tensor, flattened, in its own type.
at::Tensor read_elements(const SafetensorsSet& set, const TensorEntry& entry, std::int64_t first, std::int64_t count) {
  const at::Tensor values = at::empty({count}, at::TensorOptions().dtype(checkpoint::scalar_type(entry.type)));
  set.copy_strided(entry.name, first, {1}, values);
  return values;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Calls visit(first, a, b) for blocks of the elements of two tensors of the same shape, until it returns false.
template <typename Visit>
void for_each_block(const SafetensorsSet& first_set, const TensorEntry& first, const SafetensorsSet& second_set,
                    const TensorEntry& second, const Visit& visit) {
  const std::int64_t total = checkpoint::num_elements(first.shape);
  const auto block = static_cast<std::int64_t>(base::kMappedBlockBytes / 8);
  for (std::int64_t begin = 0; begin < total; begin += block) {
    const std::int64_t count = std::min(block, total - begin);
    if (!visit(begin, read_elements(first_set, first, begin, count), read_elements(second_set, second, begin, count)))
      return;
  }
}

/// [elements] bool: which of them differ. difference: of the two widened, NaN where one alone is no number.
at::Tensor different_elements(const at::Tensor& a, const at::Tensor& b, std::optional<double> tolerance,
                              const at::Tensor& difference) {
  if (tolerance) return (difference <= *tolerance).logical_not();
  const std::int64_t size = a.element_size();
  return (a.view(at::kByte).view({-1, size}) != b.view(at::kByte).view({-1, size})).any(1);
}

std::vector<std::int64_t> index_of(std::int64_t element, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; element /= shape[axis]) index[axis] = element % shape[axis];
  return index;
}

void note_values(TensorDifference& found, std::int64_t begin, const at::Tensor& a, const at::Tensor& b,
                 const std::vector<std::int64_t>& shape, std::optional<double> tolerance) {
  const at::Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  at::Tensor difference = (wide_a - wide_b).abs();
  // Infinities of the same sign, and NaN in both places, are no difference in value.
  difference.masked_fill_((wide_a == wide_b).logical_or(wide_a.isnan().logical_and(wide_b.isnan())), 0);
  const at::Tensor differs = different_elements(a, b, tolerance, difference);
  const auto count = differs.sum().item<std::int64_t>();
  if (count == 0) return;
  if (found.num_different == 0) found.where = index_of(begin + differs.nonzero()[0][0].item<std::int64_t>(), shape);
  found.num_different += count;
  const double largest = difference.masked_select(differs).max().item<double>();  // a NaN wins
  found.largest = std::isnan(found.largest) || largest < found.largest ? found.largest : largest;
}

void compare_one(const SafetensorsSet& first_set, const TensorEntry& first, const SafetensorsSet& second_set,
                 const TensorEntry& second, std::optional<double> tolerance, ComparedTensors& result) {
  if (first.shape != second.shape) {
    result.differences.push_back({.kind = Kind::kShape,
                                  .name = first.name,
                                  .first = shape_text(first.shape),
                                  .second = shape_text(second.shape),
                                  .where = {}});
    return;
  }
  if (first.type != second.type && !tolerance) {
    result.differences.push_back({.kind = Kind::kType,
                                  .name = first.name,
                                  .first = element_type_name(first.type),
                                  .second = element_type_name(second.type),
                                  .where = {}});
    return;
  }
  TensorDifference found{.kind = Kind::kValues, .name = first.name, .first = {}, .second = {}, .where = {}};
  for_each_block(first_set, first, second_set, second,
                 [&](std::int64_t begin, const at::Tensor& a, const at::Tensor& b) {
                   if (first.type == second.type && same_bits(a, b)) return true;
                   note_values(found, begin, a, b, first.shape, tolerance);
                   return true;
                 });
  if (found.num_different > 0) result.differences.push_back(std::move(found));
}

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::kOnlyInFirst:
      return "only in the first";
    case Kind::kOnlyInSecond:
      return "only in the second";
    case Kind::kShape:
      return "shape";
    case Kind::kType:
      return "type";
    case Kind::kValues:
      break;
  }
  return "values";
}

}  // namespace

ComparedTensors compare_tensors(const std::filesystem::path& first, const std::filesystem::path& second,
                                std::optional<double> tolerance) {
  const SafetensorsSet a(first), b(second);
  std::set<std::string> names;
  for (const std::string& name : a.names()) names.insert(name);
  for (const std::string& name : b.names()) names.insert(name);
  ComparedTensors result;
  for (const std::string& name : names) {
    const TensorEntry *in_a = a.find(name), *in_b = b.find(name);
    if (in_a == nullptr || in_b == nullptr) {
      result.differences.push_back({.kind = in_b == nullptr ? Kind::kOnlyInFirst : Kind::kOnlyInSecond,
                                    .name = name,
                                    .first = {},
                                    .second = {},
                                    .where = {}});
      continue;
    }
    ++result.num_tensors;
    result.size_bytes += static_cast<std::int64_t>(in_a->end_bytes - in_a->begin_bytes);
    compare_one(a, *in_a, b, *in_b, tolerance, result);
  }
  return result;
}

bool same_tensor(const SafetensorsSet& first_set, const std::string& first, const SafetensorsSet& second_set,
                 const std::string& second) {
  const TensorEntry &a = *first_set.find(first), &b = *second_set.find(second);
  bool same = a.shape == b.shape && a.type == b.type;
  if (!same) return false;
  for_each_block(first_set, a, second_set, b,
                 [&](std::int64_t, const at::Tensor& x, const at::Tensor& y) { return same = same_bits(x, y); });
  return same;
}

std::string render_differences(const ComparedTensors& compared) {
  std::string text;
  for (const TensorDifference& one : compared.differences) {
    text += one.name + ": ";
    if (one.kind == Kind::kValues) {
      text += fmt::format("{} values differ, the first at {}, by at most {:.3g}\n", one.num_different,
                          shape_text(one.where), one.largest);
    } else if (one.first.empty()) {
      text += std::string(kind_name(one.kind)) + "\n";
    } else {
      text += fmt::format("{} {} and {}\n", kind_name(one.kind), one.first, one.second);
    }
  }
  const std::string size = base::format_bytes(static_cast<double>(compared.size_bytes));
  return text + (compared.same() ? fmt::format("All {} tensors ({}) are the same.\n", compared.num_tensors, size)
                                 : fmt::format("{} differences; {} tensors ({}) are in both.\n",
                                               compared.differences.size(), compared.num_tensors, size));
}

nlohmann::json to_json(const ComparedTensors& compared) {
  nlohmann::json differences = nlohmann::json::array();
  for (const TensorDifference& one : compared.differences) {
    nlohmann::json entry = {{"name", one.name}, {"kind", kind_name(one.kind)}};
    if (!one.first.empty()) entry.update({{"first", one.first}, {"second", one.second}});
    if (one.kind == Kind::kValues)
      entry.update({{"elements", one.num_different}, {"largest", one.largest}, {"at", one.where}});
    differences.push_back(std::move(entry));
  }
  return {{"ok", compared.same()}, {"tensors", compared.num_tensors}, {"differences", std::move(differences)}};
}

}  // namespace pharos::hf
