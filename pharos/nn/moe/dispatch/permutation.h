// Order in which choices of tokens lie before experts (or before ranks), and the copies that follow it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace pharos::nn::moe {

/// Choices [tokens, k] of bins sorted by bin, then by token. Rows that are not there and choices without a row are -1.
struct Permutation {
  at::Tensor tokens;   ///< int64 [rows]: token of each row
  at::Tensor choices;  ///< int64 [rows]: its choice, token · k + place
  at::Tensor rows;     ///< int64 [tokens, k]: row of each choice
  at::Tensor counts;   ///< int64 [bins]: choices of each bin
};

/// choices: int64 [tokens, k], bin of each or -1 for none. With `rows_per_bin` every bin gets that many rows, the last
/// of them empty (InternalError on the CPU when a bin was chosen more often); else rows = choices that have a bin,
/// which come first, followed by empty rows up to tokens · k (the device alone knows how many).
Permutation sort_choices(const at::Tensor& choices, std::int64_t num_bins, std::optional<std::int64_t> rows_per_bin);

/// Choices of each bin: int64 [bins].
at::Tensor count_choices(const at::Tensor& choices, std::int64_t num_bins);

/// sort_choices() with operations that run on every device. For tests.
Permutation sort_choices_by_operations(const at::Tensor& choices, std::int64_t num_bins,
                                       std::optional<std::int64_t> rows_per_bin);

/// output[i] = table[indices[i]], zero where the index is -1. table: [n, …]; indices: int64 [m] -> [m, …].
at::Tensor take_rows(const at::Tensor& table, const at::Tensor& indices);

/// output[t] = Σ_j table[indices[t, j]] in the order of j, without those of index -1; sums of 16-bit types are made in
/// fp32 and rounded once. table: [n, …]; indices: int64 [tokens, k] -> [tokens, …].
at::Tensor sum_rows(const at::Tensor& table, const at::Tensor& indices);

}  // namespace pharos::nn::moe
