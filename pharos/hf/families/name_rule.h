// One line of a family's table of tensor names.
#pragma once

namespace pharos::hf {

/// {} stands for the layer number. A piece of experts has one more axis in front: {e} in `tensor` stands for the
/// expert's number (one tensor an expert); without it the stored tensor has that axis too.
struct NameRule {
  const char* piece;
  const char* tensor;       ///< without the family's prefix
  bool transposed = false;  ///< stored [in, out] (GPT-2's Conv1D, stacked experts)
  int part = 0;             ///< the piece is block `part` of `num_parts` equal ones along its rows (GPT-2's q|k|v)
  int num_parts = 1;
  bool interleaved = false;  ///< the parts' rows alternate: row r of the piece is row r num_parts + part
  bool is_head = false;      ///< never prefixed
  bool is_fp32 = false;      ///< stays in fp32 when the other weights are converted
};

}  // namespace pharos::hf
