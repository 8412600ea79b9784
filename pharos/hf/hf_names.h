// Where a piece lies in the tensors of a Hugging Face checkpoint: one table per family, read in both directions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/hf/hf_config.h"
#include "pharos/tensor/parameter.h"

namespace pharos::hf {

/// One line of a family's table; {} stands for the layer number.
struct NameRule {
  const char* piece;
  const char* tensor;       ///< without the family's prefix
  bool transposed = false;  ///< stored [in, out] (GPT-2's Conv1D)
  int part = 0;             ///< the piece is block `part` of `num_parts` equal ones along its rows (GPT-2's q|k|v)
  int num_parts = 1;
  bool is_head = false;  ///< never prefixed
};

struct NameTable {
  Family family;
  const char* prefix;  ///< of every tensor but the head; checkpoints of the headless model lack it
  std::vector<NameRule> rules;
  std::vector<const char*> ignorable;  ///< buffers that some checkpoints store, as patterns
};

const NameTable& name_table(Family family);

/// The stored tensor of one piece, and where in it the piece lies.
struct Location {
  std::string tensor;
  bool transposed = false;
  int part = 0;
  int num_parts = 1;

  /// Shape of the stored tensor for a piece of `shape`.
  std::vector<std::int64_t> tensor_shape(const std::vector<std::int64_t>& shape) const;
  /// `slice` of a piece of `shape` in the stored tensor's own axes.
  tensor::Slice in_tensor(const tensor::Slice& slice, const std::vector<std::int64_t>& shape) const;
};

/// nullopt when the table has no line for `piece`.
std::optional<Location> locate(const NameTable& table, const std::string& piece, bool with_prefix);

/// True when some piece of a model of `num_layers` may lie in `tensor`.
bool is_known_tensor(const NameTable& table, const std::string& tensor, bool with_prefix, std::int64_t num_layers);

/// True for a buffer that says nothing a model needs.
bool is_ignorable(const NameTable& table, const std::string& tensor, bool with_prefix);

}  // namespace pharos::hf
