// Two sets of safetensors files, tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors.h"

namespace pharos::hf {

/// What is different about one tensor.
struct TensorDifference {
  enum class Kind : std::uint8_t { kOnlyInFirst, kOnlyInSecond, kShape, kType, kValues };
  Kind kind;
  std::string name;
  std::string first, second;        ///< shapes or types
  std::int64_t num_different = 0;   ///< elements
  double largest = 0;               ///< absolute difference; NaN where one of the two is no number
  std::vector<std::int64_t> where;  ///< the first element that differs
};

struct ComparedTensors {
  std::int64_t num_tensors = 0;  ///< in both
  std::int64_t size_bytes = 0;   ///< of those in the first
  std::vector<TensorDifference> differences;
  bool same() const { return differences.empty(); }
};

/// Compares the safetensors files of two folders, or two files, a few MiB at a time: names, shapes, types, and values
/// bit by bit. With a tolerance, values may differ by it (absolute, widened to fp64) and types may differ; two NaN are
/// then equal. UserError when one is no such folder or is damaged.
ComparedTensors compare_tensors(const std::filesystem::path& first, const std::filesystem::path& second,
                                std::optional<double> tolerance = std::nullopt);

/// Whether shape, type and bits of two tensors are the same.
bool same_tensor(const checkpoint::SafetensorsSet& first_set, const std::string& first,
                 const checkpoint::SafetensorsSet& second_set, const std::string& second);

/// One line a difference, for people.
std::string render_differences(const ComparedTensors& compared);

/// {"ok": bool, "tensors": count, "differences": [{"name", "kind", …}, …]}
nlohmann::json to_json(const ComparedTensors& compared);

}  // namespace pharos::hf
